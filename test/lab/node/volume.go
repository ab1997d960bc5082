// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// prepareVolumes writes the Pod's volumes below dir and says where each is. Their content is that of the Pod's start.
func prepareVolumes(ctx context.Context, o objects, facts podFacts, dir string) (map[string]string, error) {
	paths := map[string]string{}
	for i := range facts.pod.Spec.Volumes {
		volume := &facts.pod.Spec.Volumes[i]
		if volume.HostPath != nil {
			paths[volume.Name] = volume.HostPath.Path
			continue
		}
		files, err := volumeFiles(ctx, o, facts, volume)
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		path := filepath.Join(dir, volume.Name)
		if err := writeFiles(path, files); err != nil {
			return nil, fmt.Errorf("volume %s: %w", volume.Name, err)
		}
		paths[volume.Name] = path
	}
	return paths, nil
}

func volumeFiles(ctx context.Context, o objects, facts podFacts, volume *corev1.Volume) (map[string][]byte, error) {
	namespace := facts.pod.Namespace
	switch {
	case volume.EmptyDir != nil:
		return nil, nil
	case volume.ConfigMap != nil:
		data, err := o.configMap(ctx, namespace, volume.ConfigMap.Name, volume.ConfigMap.Optional)
		return pick(data, volume.ConfigMap.Items), err
	case volume.Secret != nil:
		data, err := o.secret(ctx, namespace, volume.Secret.SecretName, volume.Secret.Optional)
		return pick(data, volume.Secret.Items), err
	case volume.DownwardAPI != nil:
		return downward(facts, volume.DownwardAPI.Items)
	case volume.Projected != nil:
		return projected(ctx, o, facts, volume.Projected)
	}
	return nil, fmt.Errorf("this kind of volume is beyond this lab")
}

func projected(ctx context.Context, o objects, facts podFacts, source *corev1.ProjectedVolumeSource) (map[string][]byte, error) {
	namespace := facts.pod.Namespace
	files := map[string][]byte{}
	for _, s := range source.Sources {
		var part map[string][]byte
		var err error
		switch {
		case s.ServiceAccountToken != nil:
			part, err = serviceAccountToken(ctx, o, facts.pod, s.ServiceAccountToken)
		case s.ConfigMap != nil:
			optional := s.ConfigMap.Optional
			if s.ConfigMap.Name == "kube-root-ca.crt" {
				optional = ptr.To(true) // the lab may run without the controller that publishes it
			}
			part, err = o.configMap(ctx, namespace, s.ConfigMap.Name, optional)
			part = pick(part, s.ConfigMap.Items)
		case s.Secret != nil:
			part, err = o.secret(ctx, namespace, s.Secret.Name, s.Secret.Optional)
			part = pick(part, s.Secret.Items)
		case s.DownwardAPI != nil:
			part, err = downward(facts, s.DownwardAPI.Items)
		}
		if err != nil {
			return nil, err
		}
		for name, data := range part {
			files[name] = data
		}
	}
	return files, nil
}

func serviceAccountToken(ctx context.Context, o objects, pod *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (map[string][]byte, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	token, err := o.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token of service account %s: %w", pod.Spec.ServiceAccountName, err)
	}
	return map[string][]byte{source.Path: []byte(token.Status.Token)}, nil
}

func downward(facts podFacts, items []corev1.DownwardAPIVolumeFile) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, item := range items {
		if item.FieldRef == nil {
			continue
		}
		value, err := facts.field(item.FieldRef.FieldPath)
		if err != nil {
			return nil, err
		}
		files[item.Path] = []byte(value)
	}
	return files, nil
}

func pick(data map[string][]byte, items []corev1.KeyToPath) map[string][]byte {
	if len(items) == 0 {
		return data
	}
	files := map[string][]byte{}
	for _, item := range items {
		if value, found := data[item.Key]; found {
			files[item.Path] = value
		}
	}
	return files
}

func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	for name, data := range files {
		if !filepath.IsLocal(name) {
			return fmt.Errorf("file %q would be outside of the volume", name)
		}
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// containerMounts are what the container sees of its image, its Pod and its volumes.
func containerMounts(container *corev1.Container, image Image, podDir string, volumes map[string]string, env []string) ([]mount, error) {
	var mounts []mount
	for target, source := range image.Binds {
		mounts = append(mounts, mount{Source: source, Target: target, ReadOnly: true})
	}
	for _, dir := range image.Scratch {
		mounts = append(mounts, mount{Target: dir})
	}
	for _, name := range []string{"hosts", "hostname"} {
		mounts = append(mounts, mount{Source: filepath.Join(podDir, name), Target: "/etc/" + name})
	}
	for _, m := range container.VolumeMounts {
		source, found := volumes[m.Name]
		if !found {
			return nil, fmt.Errorf("no volume %q", m.Name)
		}
		sub := m.SubPath
		if m.SubPathExpr != "" {
			sub = expandAll([]string{m.SubPathExpr}, env)[0]
		}
		if sub != "" {
			if !filepath.IsLocal(sub) {
				return nil, fmt.Errorf("volume %q: path %q leads out of it", m.Name, sub)
			}
			source = filepath.Join(source, sub)
			if _, err := os.Stat(source); os.IsNotExist(err) {
				if err := os.MkdirAll(source, 0o755); err != nil {
					return nil, err
				}
			}
		}
		mounts = append(mounts, mount{Source: source, Target: m.MountPath, ReadOnly: m.ReadOnly})
	}
	return mounts, nil
}
