"""``flashinfer-shim prewarm``: the kernel modules that ops need, built before anything needs them.

What is built, with which flags, where and under which locks is FlashInfer's own business: its own
``JitSpec.build`` runs, in a child process.
"""
