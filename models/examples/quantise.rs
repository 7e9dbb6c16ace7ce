//! Writes a model with its layers' projections in 4 bits or FP8, each number to the nearest, to try out what a quantised checkpoint takes here:
//! `cargo run --release -p faser-models --example quantise -- FROM TO awq|gptq|w4a16|w4a16-zero-points|fp8|fp8-blocks [GROUP]`

#[path = "../tests/forward/quantised_files.rs"]
mod quantised_files;

use quantised_files::{Layout, Order, quantise};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, layout, rest @ ..] = &arguments[..] else {
        return Err("give FROM, TO and awq, gptq, w4a16, w4a16-zero-points, fp8 or fp8-blocks".into());
    };
    let layout = match layout.as_str() {
        "awq" => Layout::Awq,
        "gptq" => Layout::Gptq(Order::Plain),
        "w4a16" => Layout::Packed { symmetric: true },
        "w4a16-zero-points" => Layout::Packed { symmetric: false },
        "fp8" => Layout::Channels,
        "fp8-blocks" => Layout::Blocks,
        other => {
            let known = "awq, gptq, w4a16, w4a16-zero-points, fp8 or fp8-blocks";
            return Err(format!("{other} is no layout: {known}").into());
        }
    };
    let group = rest.first().map_or(Ok(128), |text| text.parse())?;
    quantise(from.as_ref(), to.as_ref(), layout, group);
    Ok(())
}
