# Each target runs the script of its name, which says at its top what it does; nothing happens in here. Arguments:
#   make test ARGS='-run TestName ./pkg/agent'
.DEFAULT_GOAL := help

.PHONY: help demo test verify lint generate build clean
help demo test verify lint generate build clean:
	@scripts/$@ $(ARGS)
