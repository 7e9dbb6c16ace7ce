//! Every CUDA kernel, compiled as host C++ and run on fibers in three orders, against the CPU's op. No GPU is needed.

#[path = "../cuda_fake/library.rs"]
mod build;
mod host;
mod ops;
mod planted;
