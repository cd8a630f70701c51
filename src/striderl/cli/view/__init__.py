"""`striderl view`: a run in the browser, live or as a fault left it."""
