"""What the sides of the comparisons are called, and the sizes that are compared."""

BARE, START = "bare", "flashinfer-shim"
WRAPT = "a sitecustomize that imports wrapt"
DDTRACE, OPENTELEMETRY = "ddtrace-run", "opentelemetry-instrument"
WITHOUT, WITH, ADDED = "without us", "with us", "added by us"
ORIGINAL, OURS = "the original", "ours"
BY_HAND, CUSTOM_OP = "registered by hand", "torch.library.custom_op"
PYTHON_CALL, DISPATCHER_CALL = "a Python call of nothing", "a dispatcher call of nothing"
NO_CALL, TORCHS = "a compiled function without a call", "an op of torch's own"
EAGER, FULLGRAPH = "eager", "fullgraph, backend eager"
REDUCE_OVERHEAD, GRAPH = "reduce-overhead", "CUDA graph"

#: How many calls and layers are compiled, and how many rows a stack is given.
LENGTHS, DEPTHS, ROWS = (8, 64, 512), (1, 8, 80), (1, 4, 16, 64, 256)
