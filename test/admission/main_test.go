// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kubeovn/kube-ovn/cmd/kube-ovn-webhook/app"
	"github.com/kubeovn/kube-ovn/pkg/client/clientset/versioned"
	"github.com/kubeovn/kube-ovn/test/lab/controlplane"
	"github.com/kubeovn/kube-ovn/test/lab/room"
	"github.com/kubeovn/kube-ovn/test/lab/supervise"
)

// user is a client of one of the tests' users, with what the API server warned it of.
type user struct {
	kube     kubernetes.Interface
	kubeOvn  versioned.Interface
	warnings *warnings
}

// warnings are those of the last request.
type warnings struct{ texts []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

// take gives the warnings since it was last asked.
func (w *warnings) take() []string {
	texts := w.texts
	w.texts = nil
	return texts
}

// shared is what all tests here use.
var shared struct {
	plane *controlplane.ControlPlane
	// kubeconfig is the webhook's own.
	kubeconfig string
	webhook    *webhook
	// alice may do everything, the controller too.
	alice, controller *user
}

// TestMain runs the tests in a room, with a real API server and the webhook.
func TestMain(m *testing.M) {
	room.Main(func() (int, error) { return runTests(m) })
}

func runTests(m *testing.M) (int, error) {
	// The command runs more than once in this process.
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := startAPIServer(ctx); err != nil {
		return 1, err
	}
	var err error
	if shared.webhook, err = startWebhook(ctx, 8443, 8080); err != nil {
		return 1, err
	}
	status := m.Run()
	if err := shared.webhook.stop(); err != nil {
		return 1, err
	}
	return status, nil
}

func startAPIServer(ctx context.Context) error {
	logs, dir := filepath.Join(room.Dir, "logs"), filepath.Join(room.Dir, "controlplane")
	for _, d := range []string{logs, dir} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	plane, err := controlplane.Start(ctx, controlplane.Config{
		Dir: dir, Tool: controlplane.DefaultPath().Find, NodeName: "lab", NodeIP: netip.MustParseAddr("203.0.113.2"),
		Supervisor: supervise.New(logs, func(d *supervise.DeathError) { fmt.Fprintln(os.Stderr, d) }),
	})
	if err != nil {
		return err
	}
	shared.plane = plane
	files, err := filepath.Glob("../../dist/crds/*.yaml")
	if err != nil {
		return err
	}
	if err := apply(ctx, plane.Admin, append(files, "testdata/rbac.yaml")...); err != nil {
		return err
	}
	if shared.alice, err = newUser("alice"); err != nil {
		return err
	}
	if shared.controller, err = newUser("system:serviceaccount:kube-system:ovn"); err != nil {
		return err
	}
	shared.kubeconfig, err = plane.Kubeconfig("webhook", serviceAccount("kube-ovn-webhook"))
	return err
}

func serviceAccount(name string) controlplane.Subject {
	return controlplane.Subject{
		CommonName:   "system:serviceaccount:kube-system:" + name,
		Organization: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"},
	}
}

func newUser(name string) (*user, error) {
	path, err := shared.plane.Kubeconfig(filepath.Base(name), controlplane.Subject{CommonName: name})
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, err
	}
	u := &user{warnings: &warnings{}}
	config.QPS, config.WarningHandler = -1, u.warnings
	if u.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, err
	}
	u.kubeOvn, err = versioned.NewForConfig(config)
	return u, err
}

// apply creates the objects of files, and waits for kinds that the files before bring.
func apply(ctx context.Context, config *rest.Config, files ...string) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	disco, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return fmt.Errorf("read %s: %w", file, err)
			}
			if len(object.Object) == 0 {
				continue // comments
			}
			gvk := object.GroupVersionKind()
			mapping, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if _, err := client.Resource(mapping.Resource).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create %s of %s: %w", object.GetName(), file, err)
			}
		}
	}
	return nil
}

// webhook is a running kube-ovn-webhook.
type webhook struct {
	port, health int
	cancel       context.CancelFunc
	done         chan error
}

// startWebhook runs the command until it is ready; flags are added to what it needs.
func startWebhook(ctx context.Context, port, health int, flags ...string) (*webhook, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &webhook{port: port, health: health, cancel: cancel, done: make(chan error, 1)}
	args := append([]string{
		"--kubeconfig=" + shared.kubeconfig, fmt.Sprintf("--port=%d", port), fmt.Sprintf("--health-port=%d", health),
		"--bind-address=127.0.0.1", "--tls-extra-name=127.0.0.1", "--shutdown-delay=0s",
	}, flags...)
	go func() { w.done <- app.Run(ctx, args, os.Stderr) }()
	err := poll(ctx, func() error {
		select {
		case err := <-w.done:
			w.done <- err
			return fatalError{fmt.Errorf("the webhook has ended: %w", err)}
		default:
			return w.get("/readyz")
		}
	})
	if err == nil && port == 8443 {
		// Its caBundle goes into what is there by now.
		if err = apply(ctx, shared.plane.Admin, "testdata/webhook.yaml"); err == nil {
			err = awaitCalls(ctx)
		}
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return w, nil
}

func (w *webhook) stop() error {
	w.cancel()
	err := <-w.done
	w.done <- err
	return err
}

// get asks the health port.
func (w *webhook) get(path string) error {
	body, status, err := w.read(path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", path, status, body)
	}
	return err
}

func (w *webhook) read(path string) (body string, status int, err error) {
	response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", w.health, path)) //nolint:noctx // the client's timeout is the test's
	if err != nil {
		return "", 0, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	return string(data), response.StatusCode, err
}

// fatalError ends polling.
type fatalError struct{ error }

// poll tries until it works, and gives the last reason why it did not.
func poll(ctx context.Context, try func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 5*time.Minute, true, func(context.Context) (bool, error) {
		last = try()
		var fatal fatalError
		if errors.As(last, &fatal) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// awaitCalls waits until the API server calls the webhook, and trusts it.
func awaitCalls(ctx context.Context) error {
	return poll(ctx, func() error {
		_, err := shared.alice.kubeOvn.KubeovnV1().IptablesDnatRules().Create(ctx, newRule("probe", port("0")), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) {
			return fmt.Errorf("a bad rule gets: %w", err)
		}
		return nil
	})
}
