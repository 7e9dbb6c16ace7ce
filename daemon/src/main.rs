//! The binary.

fn main() {
    faser::main()
}
