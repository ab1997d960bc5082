// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json

	"github.com/kubeovn/kube-ovn/cmd/internal/flags"
	"github.com/kubeovn/kube-ovn/pkg/admission"
)

// options are the flags and the environment, checked.
type options struct {
	kubeconfig      string
	bindAddress     string
	port            int
	healthPort      int
	controllers     []string
	requireEIPGrant bool
	shutdownDelay   time.Duration
	liveReadTimeout time.Duration

	tlsMinVersion   string
	tlsCipherSuites []string
	certFile        string
	keyFile         string

	serviceName   string
	extraNames    []string
	secretName    string
	configuration string

	version           bool
	podNamespace      string
	logging           *logsapi.LoggingConfiguration
	environmentLookup func(string) string
}

func newOptions() *options {
	return &options{logging: logsapi.NewLoggingConfiguration(), environmentLookup: os.Getenv}
}

func (o *options) flags() *pflag.FlagSet {
	fs := pflag.NewFlagSet(Name, pflag.ContinueOnError)
	fs.SortFlags = false
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig file. Empty: the in-cluster configuration.")
	fs.StringVar(&o.bindAddress, "bind-address", "", "Address that both ports are opened on. Empty: all.")
	fs.IntVar(&o.port, "port", 8443, "Port that API servers call.")
	fs.IntVar(&o.healthPort, "health-port", 8080, "Port of /healthz, /readyz and /metrics.")
	fs.StringSliceVar(&o.controllers, "controller-username", []string{admission.DefaultController},
		"User as whom the kube-ovn-controller writes. Only it may set, change or remove the labels that say which Service owns a rule. May be given several times.")
	fs.BoolVar(&o.requireEIPGrant, "nftable-lb-svc-require-eip-grant", false,
		"Warn of Services whose namespace is not named by their IptablesEIP's annotation ovn.kubernetes.io/nftable-lb-svc-namespaces. As the controller's flag.")
	fs.DurationVar(&o.liveReadTimeout, "live-read-timeout", 2*time.Second,
		"Time for reading from the API server what a refusal rests on. Less than the webhook configuration's timeoutSeconds.")
	fs.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second,
		"Time between being told to stop and no longer answering, in which API servers learn that this replica goes.")

	fs.StringVar(&o.tlsMinVersion, "tls-min-version", "VersionTLS12", "Lowest version of TLS: VersionTLS12 or VersionTLS13.")
	fs.StringSliceVar(&o.tlsCipherSuites, "tls-cipher-suites", nil,
		"Cipher suites for TLS 1.2, by their names in Go, as TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256. Empty: Go's own choice.")
	fs.StringVar(&o.certFile, "tls-cert-file", "",
		"Serving certificate, as by cert-manager. It is read again when it changes. Empty: the webhook makes its own, renews it, and writes the caBundle.")
	fs.StringVar(&o.keyFile, "tls-private-key-file", "", "Key of --tls-cert-file.")

	fs.StringVar(&o.serviceName, "service-name", Name, "Service, in the namespace POD_NAMESPACE, by which API servers call. The name on a certificate of our own.")
	fs.StringSliceVar(&o.extraNames, "tls-extra-name", nil, "Further name or address on a certificate of our own. May be given several times.")
	fs.StringVar(&o.secretName, "cert-secret-name", "kube-ovn-webhook-ca", "Secret, in the namespace POD_NAMESPACE, of the certificate authority of our own.")
	fs.StringVar(&o.configuration, "webhook-configuration", Name,
		"ValidatingWebhookConfiguration that gets the caBundle of a certificate of our own. Empty: none does.")
	fs.BoolVar(&o.version, "version", false, "Print the version and end.")
	logsapi.AddFlags(o.logging, fs)
	return fs
}

// parse reads flags and environment. All that is wrong is in the one error, on one line.
func (o *options) parse(args []string) error {
	if err := flags.Parse(o.flags(), args); err != nil || o.version {
		return err
	}
	o.podNamespace = flags.Namespace(o.environmentLookup)
	return o.validate()
}

func (o *options) validate() error {
	var problems flags.Problems
	problems.Must("port", o.port > 0 && o.port < 1<<16, "from 1 to 65535")
	problems.Must("health-port", o.healthPort > 0 && o.healthPort < 1<<16 && o.healthPort != o.port, "from 1 to 65535, and not --port")
	problems.Must("controller-username", len(o.controllers) > 0 && !slices.Contains(o.controllers, ""), "the name of a user")
	problems.Must("live-read-timeout", o.liveReadTimeout > 0, "more than 0")
	problems.Must("shutdown-delay", o.shutdownDelay >= 0, "0 or more")
	problems.Must("tls-private-key-file", (o.certFile == "") == (o.keyFile == ""), "given together with --tls-cert-file")
	if o.certFile == "" {
		problems.Must("service-name", o.serviceName != "", "set, or --tls-cert-file")
		problems.Must("cert-secret-name", o.secretName != "", "set, or --tls-cert-file")
	}
	_, err := o.tlsOptions()
	problems.Note(err)
	problems.Note(logsapi.Validate(o.logging, nil, nil).ToAggregate())
	return problems.Err()
}

// names are those on a certificate of our own.
func (o *options) names() []string {
	return append([]string{o.serviceName + "." + o.podNamespace + ".svc"}, o.extraNames...)
}

// tlsOptions gives what the flags say of TLS.
func (o *options) tlsOptions() (func(*tls.Config), error) {
	versions := map[string]uint16{"VersionTLS12": tls.VersionTLS12, "TLS12": tls.VersionTLS12, "VersionTLS13": tls.VersionTLS13, "TLS13": tls.VersionTLS13}
	minVersion, ok := versions[o.tlsMinVersion]
	if !ok {
		return nil, errors.New("--tls-min-version must be VersionTLS12 or VersionTLS13")
	}
	suites, err := cliflag.TLSCipherSuites(o.tlsCipherSuites)
	if err != nil {
		return nil, fmt.Errorf("--tls-cipher-suites: %w", err)
	}
	return func(c *tls.Config) {
		c.MinVersion, c.CipherSuites = minVersion, suites
		// By HTTP/2 an API server would keep all its calls on one connection, to one replica, and would not notice for a while when
		// that is gone.
		c.NextProtos = []string{"http/1.1"}
	}, nil
}
