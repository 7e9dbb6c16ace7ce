//! The last of the tests: says which of them could not run on this machine. No harness, which would keep it to itself.

fn main() {
    if !std::env::args().any(|argument| argument == "--list") {
        println!("\n{}\n", faser_skipped::summary());
    }
}
