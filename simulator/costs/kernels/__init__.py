"""Time of kernels: one module per family; `estimator` selects the fit and the library, `gpu_model` describes the GPU."""
