"""How fast an asynchronous pipeline would run: a discrete-event model, calibrated from measurements or the paper."""
