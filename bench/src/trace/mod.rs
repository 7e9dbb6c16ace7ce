//! A record of what the lanes did, of a real daemon or of the simulator, for people: Chrome trace JSON and a picture.

mod cells;
mod chrome;
#[cfg(test)]
mod example;
mod fate;
mod lane_picture;

pub use chrome::write_chrome_trace;
pub use lane_picture::{picture, telling_window};
