# Each target runs the script of its name, which says at its top what it does; nothing happens in here. Arguments:
#   make test ARGS='-run TestName ./pkg/agent'
.DEFAULT_GOAL := help

.PHONY: help demo test test-race test-all fuzz e2e e2e-k3d verify lint generate build package package-charts clean
.PHONY: bench bench-compare bench-small bench-scale
help demo test test-race test-all fuzz e2e e2e-k3d verify lint generate build package package-charts clean bench bench-compare bench-small bench-scale:
	@scripts/$@ $(ARGS)
