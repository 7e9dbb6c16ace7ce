//! Bars of characters: columns by eighths of a line, and meters.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

/// A cell, filled from below by so many eighths.
const EIGHTHS: [&str; 9] = [" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];

/// A cell that is filled to this part, from 0 to 1; what is there at all is seen.
pub(super) fn cell(part: f64) -> &'static str {
    let eighths = (part.clamp(0.0, 1.0) * 8.0).round() as usize;
    EIGHTHS[if part > 0.0 { eighths.max(1) } else { 0 }]
}

/// Columns of these heights, from 0 to 1, each so many cells wide and `pace` apart, from the left of `area` on.
pub(super) fn columns(
    buffer: &mut Buffer,
    area: Rect,
    heights: &[f64],
    (width, pace): (u16, u16),
    color: Color,
) {
    for (number, height) in heights.iter().enumerate() {
        let left = area.x + number as u16 * pace;
        for line in 0..area.height {
            let below = f64::from(area.height - 1 - line);
            let part = (height.clamp(0.0, 1.0) * f64::from(area.height) - below).clamp(0.0, 1.0);
            // The lowest line shows what is there at all.
            let part = if below == 0.0 && *height > 0.0 { part.max(0.01) } else { part };
            for x in (left..left + width).filter(|x| *x < area.right()) {
                buffer[(x, area.y + line)]
                    .set_symbol(if below == 0.0 || part >= 0.0625 { cell(part) } else { " " })
                    .set_style(Style::new().fg(color));
            }
        }
    }
}

/// A horizontal bar over the whole of the first line of `area`: each part in its colour, what is left dark.
pub(super) fn meter(buffer: &mut Buffer, area: Rect, parts: &[(f64, Color)]) {
    if area.height == 0 {
        return;
    }
    let (mut begin, width) = (0.0, f64::from(area.width));
    for x in 0..area.width {
        buffer[(area.x + x, area.y)].set_symbol("─").set_style(Style::new().fg(Color::DarkGray));
    }
    for (part, color) in parts {
        let end: f64 = begin + part.clamp(0.0, 1.0) * width;
        let from = (begin.round() as u16).min(area.width);
        // What is there at all is seen.
        let to = (end.round() as u16).max(from + u16::from(*part > 0.0)).min(area.width);
        for x in from..to {
            buffer[(area.x + x, area.y)].set_symbol("━").set_style(Style::new().fg(*color));
        }
        begin = end;
    }
}
