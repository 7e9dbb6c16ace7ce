//! The daemon as the tests start it.

fn main() {
    faser::main()
}
