// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConditionType names one aspect of an object's state.
type ConditionType string

const (
	// Init is true once the object has been taken up.
	Init ConditionType = "Init"
	// Ready is true while the object does what its spec asks.
	Ready ConditionType = "Ready"
	// Validated says whether the spec makes sense.
	Validated ConditionType = "Validated"
	// Error is true while something keeps the object from becoming ready.
	Error ConditionType = "Error"
)

// Condition describes one aspect of an object's state at a point in time.
type Condition struct {
	// Type of the condition; there is one condition a type.
	// +optional
	Type ConditionType `json:"type,omitempty"`
	// Status is True, False or Unknown.
	// +optional
	Status corev1.ConditionStatus `json:"status,omitempty"`
	// Reason for the last change, one CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message tells a person about the last change.
	// +optional
	Message string `json:"message,omitempty"`
	// LastUpdateTime is when the condition was last looked at and written.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitzero"`
	// LastTransitionTime is when Status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`
	// ObservedGeneration is the metadata.generation the condition speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Conditions is the list of an object's conditions.
type Conditions []Condition
