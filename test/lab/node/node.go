// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeovn/kube-ovn/test/lab/fabric"
)

// Config says what the node is.
type Config struct {
	// REST reaches the API server, as somebody who may do what a kubelet and Kube-OVN may.
	REST     *rest.Config
	NodeName string
	// Dir is a directory for the Pods' files; a tmpfs is mounted below it, in the room's own mount namespace.
	Dir string
	// ServingCert, ServingKey and ClientCA are PEM files: the kubelet endpoint's certificate, and whose clients it lets in.
	ServingCert, ServingKey, ClientCA string
	// NodeIP is the node's InternalIP; it is added to the loopback where no interface has it.
	NodeIP      netip.Addr
	KubeletPort int
	// Images are added to DefaultImages, and replace those of the same key.
	Images map[string]Image
	// Bin is where agnhost is.
	Bin string
	// GatewayScripts are where the scripts of gateways are.
	GatewayScripts Scripts
	// SystemNamespace is where the lab's own objects live.
	SystemNamespace string
	// Fabric overrides addresses of the data plane; its Client is set by Start.
	Fabric fabric.Config
}

func (c *Config) defaults() {
	images := DefaultImages(c.Bin, c.GatewayScripts)
	maps.Copy(images, c.Images)
	c.Images = images
	if c.NodeName == "" {
		c.NodeName = "lab-node"
	}
	if c.KubeletPort == 0 {
		c.KubeletPort = 10250
	}
	if c.SystemNamespace == "" {
		c.SystemNamespace = "kube-system"
	}
}

// Node is the running node.
type Node struct {
	config           Config
	ctx              context.Context //nolint:containedctx // the node's life, which its Pods' workers watch
	client           kubernetes.Interface
	fabric           *fabric.Fabric
	objects          objects
	recorder         record.EventRecorder
	scratch          string
	apiHost, apiPort string

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup
	failed  chan error
}

// Start builds the data plane in the calling process's network namespace, and begins to run Pods. It returns once the node
// is Ready; all ends with the context.
func Start(ctx context.Context, config Config) (*Node, error) {
	config.defaults()
	restConfig := rest.CopyConfig(config.REST)
	restConfig.QPS = -1
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	if config.Fabric.Client, err = dynamic.NewForConfig(restConfig); err != nil {
		return nil, fmt.Errorf("make dynamic client: %w", err)
	}
	n := &Node{
		config: config, ctx: ctx, client: client, objects: objects{client}, scratch: filepath.Join(config.Dir, "node"),
		workers: map[types.UID]*worker{}, failed: make(chan error, 4),
	}
	if n.apiHost, n.apiPort, err = apiServerAddress(restConfig.Host); err != nil {
		return nil, err
	}
	if addr, err := netip.ParseAddr(n.apiHost); err == nil && addr.IsLoopback() {
		n.apiHost = config.NodeIP.String()
	}
	if err := mountScratch(n.scratch); err != nil {
		return nil, err
	}
	if n.fabric, err = fabric.New(ctx, config.Fabric); err != nil {
		return nil, fmt.Errorf("build fabric: %w", err)
	}
	if err := n.fabric.AddNodeAddress(config.NodeIP); err != nil {
		return nil, err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 200, QPS: 5}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	n.recorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: config.NodeName})

	n.background("fabric", func() error { return n.fabric.Run(ctx) })
	if err := n.serve(ctx); err != nil {
		return nil, err
	}
	if err := n.register(ctx); err != nil {
		return nil, err
	}
	if err := n.watchPods(ctx); err != nil {
		return nil, err
	}
	return n, nil
}

// background runs fn until the node ends; an error of its is logged and given to Wait.
func (n *Node) background(name string, fn func() error) {
	n.running.Go(func() {
		if err := fn(); err != nil && n.ctx.Err() == nil {
			klog.FromContext(n.ctx).Error(err, "Part of the node ended", "part", name)
			select {
			case n.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
}

// Failed reports when a part of the node ended before its time.
func (n *Node) Failed() <-chan error { return n.failed }

// Wait waits until all that the node runs has ended, after its context has.
func (n *Node) Wait() { n.running.Wait() }

// Fabric gives the data plane.
func (n *Node) Fabric() *fabric.Fabric { return n.fabric }

func apiServerAddress(host string) (name, port string, err error) {
	parsed, err := url.Parse(host)
	if err != nil || parsed.Host == "" {
		if parsed, err = url.Parse("https://" + host); err != nil {
			return "", "", fmt.Errorf("API server address %q: %w", host, err)
		}
	}
	if parsed.Port() == "" {
		return parsed.Hostname(), "443", nil
	}
	return parsed.Hostname(), parsed.Port(), nil
}

// mountScratch makes the place for the Pods' files: a tmpfs, since the upper layer of an overlay cannot lie on an overlay.
func mountScratch(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount %s: %w", dir, err)
	}
	return nil
}

// watchPods runs a worker for each Pod that is bound to the node.
func (n *Node) watchPods(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.config.NodeName).String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { n.podSeen(ctx, object.(*corev1.Pod)) },
		UpdateFunc: func(before, after any) {
			old, pod := before.(*corev1.Pod), after.(*corev1.Pod)
			if old.UID != pod.UID {
				n.podGone(old)
			}
			n.podSeen(ctx, pod)
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			if pod, ok := object.(*corev1.Pod); ok {
				n.podGone(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("the pods could not be listed")
	}
	return nil
}

func (n *Node) podSeen(ctx context.Context, pod *corev1.Pod) {
	n.mu.Lock()
	w := n.workers[pod.UID]
	if w == nil && finishedPhase(pod.Status.Phase) && pod.DeletionTimestamp == nil {
		n.mu.Unlock()
		return
	}
	created := w == nil
	if created {
		w = newWorker(n, pod)
		n.workers[pod.UID] = w
	}
	n.mu.Unlock()
	w.update(pod)
	if created {
		n.running.Go(func() {
			w.run(ctx)
			n.mu.Lock()
			defer n.mu.Unlock()
			delete(n.workers, pod.UID)
		})
	}
}

func (n *Node) podGone(pod *corev1.Pod) {
	n.mu.Lock()
	w := n.workers[pod.UID]
	n.mu.Unlock()
	if w != nil {
		w.vanish()
	}
}

// worker finds the Pod's worker; of two namesakes the one that is not on its way out.
func (n *Node) worker(namespace, name string) *worker {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found *worker
	for _, w := range n.workers {
		if w.key != namespace+"/"+name {
			continue
		}
		if found == nil || found.created.Before(w.created) {
			found = w
		}
	}
	return found
}
