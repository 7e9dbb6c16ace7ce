//! Writes a model with its layers' projections in 4 bits, each number to the nearest, to try out what a quantised checkpoint takes here:
//! `cargo run --release -p faser-models --example quantise -- FROM TO awq|gptq|w4a16|w4a16-zero-points [GROUP]`

#[path = "../tests/forward/four_bit_files.rs"]
mod four_bit_files;

use four_bit_files::{Layout, Order, quantise};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, layout, rest @ ..] = &arguments[..] else {
        return Err("give FROM, TO and awq, gptq, w4a16 or w4a16-zero-points".into());
    };
    let layout = match layout.as_str() {
        "awq" => Layout::Awq,
        "gptq" => Layout::Gptq(Order::Plain),
        "w4a16" => Layout::Packed { symmetric: true },
        "w4a16-zero-points" => Layout::Packed { symmetric: false },
        other => return Err(format!("{other} is no layout: awq, gptq, w4a16 or w4a16-zero-points").into()),
    };
    let group = rest.first().map_or(Ok(128), |text| text.parse())?;
    quantise(from.as_ref(), to.as_ref(), layout, group);
    Ok(())
}
