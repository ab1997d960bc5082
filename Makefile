# SPDX-License-Identifier: Apache-2.0
# What there is to do; the work itself is in hack/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## Say what there is to do
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the binaries into _output/bin
	@hack/build.sh

.PHONY: demo
demo: ## Show it all on a lab: a Service in a custom VPC, balanced, scaled, its gateway replaced (ARGS=--beside: beside Kube-OVN)
	@hack/demo.sh $(ARGS)

.PHONY: lab
lab: ## Bring a lab up, a whole cluster in namespaces; it stays until interrupted
	@hack/lab.sh up $(ARGS)

.PHONY: lab-shell
lab-shell: ## Open a shell in the running lab
	@hack/lab.sh shell $(ARGS)

.PHONY: test
test: unit e2e ## Run all tests: unit, then end to end on a lab

.PHONY: unit
unit: ## Run the unit tests (GOTESTFLAGS=-race for the race detector)
	@hack/unit.sh $(GOTESTFLAGS)

.PHONY: e2e
e2e: ## Run the end-to-end specs on a lab (ARGS=--focus=… for some of them)
	@hack/e2e.sh $(ARGS)

.PHONY: bench
bench: ## Take all measures of docs/performance.md (BENCH=script/listing one, BENCH=script a group, BENCH=go the Go benchmarks)
	@hack/bench.sh $(ARGS) $(BENCH)

.PHONY: generate
generate: ## Generate deepcopy functions, clients and CRDs from pkg/apis, and from them the charts' and install.sh
	@hack/update-codegen.sh && hack/update-charts.sh

.PHONY: verify
verify: ## Check that generated code is up to date, modules are tidy, and lint
	@hack/verify.sh

.PHONY: lint
lint: ## Run the linters over Go, shell and charts
	@hack/lint.sh

.PHONY: image
image: ## Build the container images, where a container engine runs
	@hack/image.sh
