// SPDX-License-Identifier: Apache-2.0

// Package images checks what the images of dist/images have to hold against what runs in them.
package images
