# Each target runs the script with its name, which has its description. Arguments:
#   make test ARGS='-run TestName ./pkg/agent'
.DEFAULT_GOAL := help

.PHONY: help demo picture screenshot test test-race test-all test-versions fuzz e2e e2e-k3d verify lint generate build package package-charts release clean
.PHONY: bench bench-compare bench-small bench-scale bench-fleet
help demo picture screenshot test test-race test-all test-versions fuzz e2e e2e-k3d verify lint generate build package package-charts release clean bench bench-compare bench-small bench-scale bench-fleet:
	@scripts/$@ $(ARGS)
