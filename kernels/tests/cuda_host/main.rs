//! Every CUDA kernel, compiled as host C++ and run on fibers in three orders, against the CPU's op. No GPU is needed.

#[path = "../reference/mod.rs"]
mod reference;

mod attention;
#[path = "../cuda_fake/library.rs"]
mod build;
mod drafting;
mod host;
mod matmul;
mod passes;
mod planted;
mod rows;
mod sampling;
