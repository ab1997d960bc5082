// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// objects reads ConfigMaps and Secrets; one that is not there gives nil data when it is optional.
type objects struct{ client kubernetes.Interface }

func (o objects) configMap(ctx context.Context, namespace, name string, optional *bool) (map[string][]byte, error) {
	object, err := o.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	data := maps.Clone(object.BinaryData)
	if data == nil {
		data = map[string][]byte{}
	}
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	return data, nil
}

func (o objects) secret(ctx context.Context, namespace, name string, optional *bool) (map[string][]byte, error) {
	object, err := o.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unlessOptional(err, optional)
	}
	return object.Data, nil
}

func unlessOptional(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && optional != nil && *optional {
		return nil
	}
	return err
}

// podFacts are what a Pod's containers are told of it.
type podFacts struct {
	pod    *corev1.Pod
	ips    []string
	hostIP string
	// apiHost and apiPort are where Pods find the API server.
	apiHost, apiPort string
}

func (f podFacts) field(path string) (string, error) {
	pod := f.pod
	if key, found := strings.CutPrefix(path, "metadata.labels['"); found {
		return pod.Labels[strings.TrimSuffix(key, "']")], nil
	}
	if key, found := strings.CutPrefix(path, "metadata.annotations['"); found {
		return pod.Annotations[strings.TrimSuffix(key, "']")], nil
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return keyValues(pod.Labels), nil
	case "metadata.annotations":
		return keyValues(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return f.hostIP, nil
	case "status.podIP":
		return strings.Join(f.ips[:min(1, len(f.ips))], ""), nil
	case "status.podIPs":
		return strings.Join(f.ips, ","), nil
	}
	return "", fmt.Errorf("field %q is beyond this lab", path)
}

func keyValues(values map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(&text, "%s=%q\n", key, values[key])
	}
	return text.String()
}

// environment gives the container's variables.
func environment(ctx context.Context, o objects, facts podFacts, container *corev1.Container, image Image) ([]string, error) {
	values := map[string]string{
		"HOSTNAME": facts.pod.Name, "HOME": "/root",
		"KUBERNETES_SERVICE_HOST": facts.apiHost, "KUBERNETES_SERVICE_PORT": facts.apiPort,
	}
	for _, entry := range append([]string{defaultPath}, image.Env...) {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	for _, from := range container.EnvFrom {
		data, err := envFrom(ctx, o, facts.pod.Namespace, from)
		if err != nil {
			return nil, err
		}
		for key, value := range data {
			values[from.Prefix+key] = string(value)
		}
	}
	for _, variable := range container.Env {
		value := expand(variable.Value, values)
		if variable.ValueFrom != nil {
			var found bool
			var err error
			if value, found, err = envValue(ctx, o, facts, variable.ValueFrom); err != nil {
				return nil, fmt.Errorf("variable %s: %w", variable.Name, err)
			}
			if !found {
				continue
			}
		}
		values[variable.Name] = value
	}
	env := make([]string, 0, len(values))
	for name, value := range values {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env, nil
}

func envFrom(ctx context.Context, o objects, namespace string, from corev1.EnvFromSource) (map[string][]byte, error) {
	switch {
	case from.ConfigMapRef != nil:
		return o.configMap(ctx, namespace, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
	case from.SecretRef != nil:
		return o.secret(ctx, namespace, from.SecretRef.Name, from.SecretRef.Optional)
	}
	return nil, nil
}

func envValue(ctx context.Context, o objects, facts podFacts, from *corev1.EnvVarSource) (value string, found bool, err error) {
	var data map[string][]byte
	var key string
	var optional *bool
	switch {
	case from.FieldRef != nil:
		value, err = facts.field(from.FieldRef.FieldPath)
		return value, err == nil, err
	case from.ConfigMapKeyRef != nil:
		key, optional = from.ConfigMapKeyRef.Key, from.ConfigMapKeyRef.Optional
		data, err = o.configMap(ctx, facts.pod.Namespace, from.ConfigMapKeyRef.Name, optional)
	case from.SecretKeyRef != nil:
		key, optional = from.SecretKeyRef.Key, from.SecretKeyRef.Optional
		data, err = o.secret(ctx, facts.pod.Namespace, from.SecretKeyRef.Name, optional)
	default:
		return "", false, nil // resources: nothing is limited here
	}
	if err != nil {
		return "", false, err
	}
	text, found := data[key]
	if !found && (optional == nil || !*optional) {
		return "", false, fmt.Errorf("no key %q", key)
	}
	return string(text), found, nil
}

// expand replaces $(NAME) by the variable's value, and $$ by $, as Kubernetes does; what is not known stays.
func expand(text string, values map[string]string) string {
	var result strings.Builder
	for {
		at := strings.IndexByte(text, '$')
		if at < 0 || at == len(text)-1 {
			result.WriteString(text)
			return result.String()
		}
		result.WriteString(text[:at])
		text = text[at:]
		end := strings.IndexByte(text, ')')
		switch {
		case text[1] == '$':
			result.WriteByte('$')
			text = text[2:]
		case text[1] == '(' && end > 0:
			if value, known := values[text[2:end]]; known {
				result.WriteString(value)
			} else {
				result.WriteString(text[:end+1])
			}
			text = text[end+1:]
		default:
			result.WriteByte('$')
			text = text[1:]
		}
	}
}

func expandAll(texts, env []string) []string {
	values := map[string]string{}
	for _, entry := range env {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
	}
	result := make([]string, len(texts))
	for i, text := range texts {
		result[i] = expand(text, values)
	}
	return result
}
