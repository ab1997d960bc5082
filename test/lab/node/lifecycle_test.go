// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/utils/exec"
	"k8s.io/utils/ptr"
)

// patience is how long what will come may take, on a machine that is slow or has more to do.
const patience = 2 * time.Minute

// create makes a Pod and removes it when the test ends.
func create(t *testing.T, name string, tweaks ...func(*corev1.Pod)) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](5),
			AutomountServiceAccountToken:  ptr.To(false),
			Containers: []corev1.Container{{
				Name: "main", Image: "registry.k8s.io/e2e-test-images/agnhost:2.53", Args: []string{"netexec", "--http-port=8080"},
				ReadinessProbe: &corev1.Probe{
					PeriodSeconds: 1, FailureThreshold: 1,
					ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}},
				},
			}},
		},
	}
	for _, tweak := range tweaks {
		tweak(pod)
	}
	pod, err := shared.client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := shared.client.CoreV1().Pods(pod.Namespace).Delete(context.Background(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return pod
}

func command(args ...string) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Image = "busybox"
		pod.Spec.Containers[0].Command, pod.Spec.Containers[0].Args = args, nil
		pod.Spec.Containers[0].ReadinessProbe = nil
	}
}

// await waits until the Pod is as wanted, by a watch.
func await(t *testing.T, name, what string, wanted func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	watch, err := shared.client.CoreV1().Pods("default").Watch(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	var last *corev1.Pod
	for event := range watch.ResultChan() {
		pod, ok := event.Object.(*corev1.Pod)
		if !ok {
			t.Fatalf("watch: %v", event.Object)
		}
		last = pod
		if wanted(pod) {
			return pod
		}
	}
	t.Fatalf("pod %s did not become %s; its status is %+v", name, what, last.Status)
	return nil
}

func isReady(pod *corev1.Pod) bool { return conditionOf(pod, corev1.PodReady) == corev1.ConditionTrue }

func conditionOf(pod *corev1.Pod, kind corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}

// execute runs a command through the API server's pods/exec.
func execute(t *testing.T, name, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	request := shared.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: args, Stdin: stdin != "", Stdout: true, Stderr: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(shared.config, "GET", request.URL().String())
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	options := remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}
	if stdin != "" {
		options.Stdin = strings.NewReader(stdin)
	}
	err = executor.StreamWithContext(t.Context(), options)
	var exit utilexec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitStatus()
	case err != nil:
		t.Fatalf("exec %v: %v", args, err)
	}
	return out.String(), errs.String(), code
}

func logs(t *testing.T, name string, options corev1.PodLogOptions) string {
	t.Helper()
	stream, err := shared.client.CoreV1().Pods("default").GetLogs(name, &options).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPodRuns(t *testing.T) {
	begin := time.Now()
	create(t, "runs", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{
			{Name: "WHO", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "GREETING", Value: "hello $(WHO)"},
		}
	})
	pod := await(t, "runs", "ready", isReady)
	t.Logf("ready after %v", time.Since(begin).Round(time.Millisecond))
	if pod.Status.PodIP == "" || pod.Status.PodIP != pod.Annotations["ovn.kubernetes.io/ip_address"] {
		t.Errorf("pod IP %q, annotation %q", pod.Status.PodIP, pod.Annotations["ovn.kubernetes.io/ip_address"])
	}
	begin = time.Now()
	stdout, _, code := execute(t, "runs", "", "sh", "-c", "echo $GREETING; hostname; ls /proc | grep -c '^[0-9]'")
	t.Logf("exec in %v", time.Since(begin).Round(time.Millisecond))
	if fields := strings.Split(stdout, "\n"); code != 0 || fields[0] != "hello runs" || fields[1] != "runs" {
		t.Errorf("exec: code %d, %q", code, stdout)
	}
	if _, stderr, code := execute(t, "runs", "", "sh", "-c", "echo bad >&2; exit 7"); code != 7 || stderr != "bad\n" {
		t.Errorf("failing exec: code %d, stderr %q", code, stderr)
	}
	if stdout, _, code := execute(t, "runs", "some input\n", "cat"); code != 0 || stdout != "some input\n" {
		t.Errorf("exec with input: code %d, %q", code, stdout)
	}
	stdout, stderr, err := ExecIn(t.Context(), "client1", "curl", "-s", "-m", "2", "http://203.0.113.2:1/")
	if err == nil {
		t.Errorf("a closed port answered: %q %q", stdout, stderr)
	}
	eventually(t, "it is in the log", func() bool {
		return strings.Contains(logs(t, "runs", corev1.PodLogOptions{}), "Started HTTP server on port 8080")
	})
}

func TestRestart(t *testing.T) {
	create(t, "restart", command("sh", "-c", "echo started; nft add table ip sticky 2>&1; touch /tmp/up; exec sleep 1000"), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/up"}}},
		}
	})
	pod := await(t, "restart", "ready", isReady)
	first := pod.Status.ContainerStatuses[0]
	if err := shared.node.KillContainer("default", "restart", "main", 9); err != nil {
		t.Fatal(err)
	}
	pod = await(t, "restart", "restarted", func(pod *corev1.Pod) bool { return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1 })
	second := pod.Status.ContainerStatuses[0]
	if second.ContainerID == first.ContainerID || second.LastTerminationState.Terminated == nil || second.LastTerminationState.Terminated.ExitCode != 137 {
		t.Errorf("before %+v, after %+v", first, second)
	}
	if got := logs(t, "restart", corev1.PodLogOptions{Previous: true}); got != "started\n" {
		t.Errorf("previous log %q", got)
	}
	ip := pod.Status.PodIP
	if stdout, _, _ := execute(t, "restart", "", "nft", "list", "tables"); !strings.Contains(stdout, "sticky") {
		t.Errorf("the sandbox lost its nft state: %q", stdout)
	}
	// By the node's proxy, as somebody outside of this process does.
	crash := shared.client.CoreV1().RESTClient().Post().Resource("nodes").Name("lab").SubResource("proxy").Suffix("lab/crash-sandbox/default/restart")
	if err := crash.Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	pod = await(t, "restart", "back", func(pod *corev1.Pod) bool { return isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount == 2 })
	if pod.Status.PodIP != ip {
		t.Errorf("IP %s became %s", ip, pod.Status.PodIP)
	}
}

func TestGracefulEnd(t *testing.T) {
	const script = `trap 'echo told; sleep 0.5; exit 3' TERM; touch /tmp/up; while :; do sleep 0.05; done`
	create(t, "graceful", command("sh", "-c", script), func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](60)
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			PeriodSeconds: 1, TimeoutSeconds: 30, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/up"}}},
		}
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "touch /tmp/hook; sleep 0.3"}}}}
	})
	await(t, "graceful", "ready", isReady)
	begin := time.Now()
	watch, err := shared.client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=graceful"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	if err := shared.client.CoreV1().Pods("default").Delete(t.Context(), "graceful", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	readyWhileTerminating := false
	var last *corev1.Pod
	for event := range watch.ResultChan() {
		pod := event.Object.(*corev1.Pod)
		if pod.DeletionTimestamp != nil && isReady(pod) {
			readyWhileTerminating = true
		}
		last = pod
		if event.Type == "DELETED" {
			break
		}
	}
	took := time.Since(begin)
	t.Logf("gone after %v", took.Round(time.Millisecond))
	if took < 800*time.Millisecond {
		t.Errorf("gone after %v, before hook and trap, 0.8 s", took)
	}
	if !readyWhileTerminating {
		t.Error("not ready any more while it was still serving")
	}
	terminated := last.Status.ContainerStatuses[0].State.Terminated
	if terminated == nil || terminated.ExitCode != 3 || last.Status.Phase != corev1.PodFailed || isReady(last) {
		t.Errorf("last status %+v", last.Status)
	}
}

func TestKilledWhenGraceIsOver(t *testing.T) {
	create(t, "stubborn", command("sleep", "1000"), func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) })
	await(t, "stubborn", "ready", isReady)
	begin := time.Now()
	if err := shared.client.CoreV1().Pods("default").Delete(t.Context(), "stubborn", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone(t, "stubborn")
	if took := time.Since(begin); took < 900*time.Millisecond {
		t.Errorf("gone after %v, before its second of grace", took)
	}
}

func gone(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := shared.client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil || !wait(ctx, 10*time.Millisecond) {
			t.Fatalf("pod %s stays: %v", name, err)
		}
	}
}

func TestProbes(t *testing.T) {
	create(t, "probes", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].LivenessProbe = &corev1.Probe{
			PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 30,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c", "! test -e /tmp/dead"}}},
		}
	})
	await(t, "probes", "ready", isReady)
	execute(t, "probes", "", "sh", "-c", "touch /tmp/dead")
	await(t, "probes", "restarted", func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].RestartCount == 1 })
	await(t, "probes", "ready again", isReady)
}

func TestReadinessFails(t *testing.T) {
	create(t, "unready", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			PeriodSeconds: 1, FailureThreshold: 1,
			ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9090)}},
		}
	})
	pod := await(t, "unready", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	if isReady(pod) {
		t.Error("ready although nothing listens")
	}
}

func TestImageIsUnknown(t *testing.T) {
	create(t, "unknown", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.com/nothing:1" })
	pod := await(t, "unknown", "waiting for its image", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Waiting != nil &&
			pod.Status.ContainerStatuses[0].State.Waiting.Reason == "ImagePullBackOff"
	})
	if message := pod.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(message, "agnhost") {
		t.Errorf("message %q", message)
	}
}

func TestRunsToItsEnd(t *testing.T) {
	tests := []struct {
		name, script string
		want         corev1.PodPhase
	}{
		{"well", "exit 0", corev1.PodSucceeded},
		{"badly", "exit 4", corev1.PodFailed},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			create(t, "job-"+test.name, command("sh", "-c", test.script), func(pod *corev1.Pod) {
				pod.Spec.RestartPolicy = corev1.RestartPolicyNever
				pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "busybox", Command: []string{"sh", "-c", "echo done > /data/file"}, VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}}
				pod.Spec.Containers[0].Command[2] = "cat /data/file; " + test.script
				pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
				pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			})
			await(t, "job-"+test.name, string(test.want), func(pod *corev1.Pod) bool { return pod.Status.Phase == test.want })
			if got := logs(t, "job-"+test.name, corev1.PodLogOptions{}); got != "done\n" {
				t.Errorf("log %q", got)
			}
		})
	}
}

func TestHostNetworkAndToken(t *testing.T) {
	create(t, "host", command("sh", "-c", "cat /var/run/secrets/kubernetes.io/serviceaccount/token > /tmp/token; exec sleep 1000"), func(pod *corev1.Pod) {
		pod.Spec.HostNetwork = true
		pod.Spec.AutomountServiceAccountToken = nil
	})
	pod := await(t, "host", "ready", isReady)
	if pod.Status.PodIP != "203.0.113.2" {
		t.Errorf("address %q, want the node's", pod.Status.PodIP)
	}
	eventually(t, "it has a token", func() bool {
		_, _, code := execute(t, "host", "", "test", "-s", "/tmp/token")
		return code == 0
	})
	if stdout, _, _ := execute(t, "host", "", "ip", "-br", "link"); !strings.Contains(stdout, "ovn0") {
		t.Errorf("not in the node's network: %s", stdout)
	}
}

// TestScratch shows that a container cannot leave anything on the machine, nor see what another wrote.
func TestScratch(t *testing.T) {
	create(t, "writes", command("sh", "-c", "echo x > /etc/kube-ovn-lab-was-here; mkdir /kube-ovn-lab-was-here; exec sleep 1000"))
	await(t, "writes", "ready", isReady)
	eventually(t, "it wrote", func() bool {
		_, _, code := execute(t, "writes", "", "test", "-d", "/kube-ovn-lab-was-here")
		return code == 0
	})
	for _, path := range []string{"/etc/kube-ovn-lab-was-here", "/kube-ovn-lab-was-here"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is on the machine", path)
		}
	}
}

// restricted is the security context of Pods under the Pod Security Standard of that name, on a read-only root.
func restricted(pod *corev1.Pod) {
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532), RunAsGroup: ptr.To[int64](65533)}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{
		AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func TestRestricted(t *testing.T) {
	const script = `id -u; id -g; id -G; grep -E '^(Cap(Prm|Eff|Bnd)|NoNewPrivs):' /proc/self/status | tr -d '\t'
for dir in / /etc /usr /tmp /run; do touch $dir/kube-ovn-lab-was-here 2>/dev/null && echo "writes in $dir"; done
echo x > /data/file && cat /data/file
test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token`
	create(t, "restricted", command("sh", "-c", script), restricted, func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.AutomountServiceAccountToken = nil
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	})
	await(t, "restricted", "done", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	ids := []string{"65532", "65533", "65533"}
	if there, err := UserExists(65532); err != nil || !there {
		ids = []string{"0", "0", "0"} // the only one in the room's user namespace
	}
	want := strings.Join(append(ids,
		"CapPrm:0000000000000000", "CapEff:0000000000000000", "CapBnd:0000000000000000", "NoNewPrivs:1", "x", "token", "",
	), "\n")
	if diff := cmp.Diff(want, logs(t, "restricted", corev1.PodLogOptions{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRefusesRoot(t *testing.T) {
	create(t, "root", command("true"), func(pod *corev1.Pod) {
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	})
	await(t, "root", "refused", func(pod *corev1.Pod) bool {
		statuses := pod.Status.ContainerStatuses
		return len(statuses) == 1 && statuses[0].State.Waiting != nil && statuses[0].State.Waiting.Reason == "CreateContainerConfigError"
	})
}
