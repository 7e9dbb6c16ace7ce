//! The lanes lately: a line of cells for each, higher the more of that time it worked, and coloured by what it did.

use std::time::Duration;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use super::bars::cell;
use super::state::Lanes;

/// Verify passes, drafting, drafting while a verify pass runs, and drafting of which chunks were cancelled.
pub(super) const VERIFY: Color = Color::Blue;
pub(super) const DRAFT: Color = Color::Yellow;
pub(super) const AHEAD: Color = Color::Green;
pub(super) const CANCELLED: Color = Color::Red;

/// What a lane did in the time of a cell, in µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Worked {
    verify: u64,
    draft: u64,
    /// Of `draft`: while a verify pass ran.
    ahead: u64,
    cancelled: bool,
}

/// Both lines, the latest at the right: verify in the first line of `area`, draft in the second.
pub(super) fn draw(buffer: &mut Buffer, area: Rect, lanes: &Lanes, span: Duration) {
    let cells = worked(lanes, span, usize::from(area.width));
    for (x, worked) in (area.x..area.right()).zip(cells) {
        let Some((worked, width_us)) = worked else { continue };
        let part = |us: u64| us as f64 / width_us as f64;
        let drafting = match worked {
            Worked { cancelled: true, .. } => CANCELLED,
            // More than half of it.
            Worked { draft, ahead, .. } if 2 * ahead > draft => AHEAD,
            _ => DRAFT,
        };
        for (line, (us, color)) in [(worked.verify, VERIFY), (worked.draft, drafting)].into_iter().enumerate()
        {
            let y = area.y + line as u16;
            if y < area.bottom() {
                buffer[(x, y)].set_symbol(cell(part(us))).set_style(Style::new().fg(color));
            }
        }
    }
}

/// What the lanes did in each cell, and how long a cell is; none where it is not known.
fn worked(lanes: &Lanes, span: Duration, cells: usize) -> Vec<Option<(Worked, u64)>> {
    let span_us = span.as_micros() as u64;
    // Also on a screen wider than the span has microseconds.
    let width_us = (span_us / cells.max(1) as u64).max(1);
    let from = lanes.now_us.saturating_sub(width_us * cells as u64);
    let mut made = vec![Worked::default(); cells];
    let mut each = |began: u64, ended: u64, add: &mut dyn FnMut(&mut Worked, u64)| {
        if ended < from {
            return;
        }
        let first = (began.max(from) - from) / width_us;
        let last = (ended - from) / width_us;
        for number in first..=last.min(cells.saturating_sub(1) as u64) {
            let begin = from + number * width_us;
            let part = ended.min(begin + width_us).saturating_sub(began.max(begin));
            if let Some(cell) = made.get_mut(number as usize) {
                add(cell, part);
            }
        }
    };
    let verify: Vec<_> = lanes.passes.iter().filter(|pass| pass.lane == "verify").collect();
    for pass in &verify {
        each(pass.began_us, pass.ended_us, &mut |cell, us| cell.verify += us);
    }
    let mut next = 0;
    for draft in lanes.passes.iter().filter(|pass| pass.lane == "draft") {
        each(draft.began_us, draft.ended_us, &mut |cell, us| {
            cell.draft += us;
            cell.cancelled |= draft.cancelled > 0;
        });
        // Passes of one lane follow one another.
        while verify.get(next).is_some_and(|pass| pass.ended_us <= draft.began_us) {
            next += 1;
        }
        for pass in verify[next..].iter().take_while(|pass| pass.began_us < draft.ended_us) {
            let (began, ended) = (draft.began_us.max(pass.began_us), draft.ended_us.min(pass.ended_us));
            each(began, ended, &mut |cell, us| cell.ahead += us);
        }
    }
    let known = |number: usize| from + (number as u64 + 1) * width_us > lanes.from_us;
    made.into_iter().enumerate().map(|(number, cell)| known(number).then_some((cell, width_us))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::timeline::PassRow;

    fn pass(lane: &str, began_us: u64, ended_us: u64, cancelled: usize) -> PassRow {
        PassRow { lane: lane.to_owned().into(), began_us, ended_us, cancelled, ..PassRow::default() }
    }

    #[test]
    fn cells_have_what_was_done_in_their_time() {
        let passes = vec![
            pass("verify", 0, 500, 0),
            pass("draft", 2000, 2500, 0),
            pass("verify", 2250, 4000, 0),
            pass("draft", 3000, 4000, 1),
        ];
        let lanes = Lanes { passes, now_us: 5000, from_us: 1000 };
        let cells = worked(&lanes, Duration::from_micros(5000), 5);
        let cell = |verify, draft, ahead, cancelled| Some((Worked { verify, draft, ahead, cancelled }, 1000));
        assert_eq!(cells[0], None, "before what is known");
        assert_eq!(cells[1], cell(0, 0, 0, false));
        assert_eq!(cells[2], cell(750, 500, 250, false));
        assert_eq!(cells[3], cell(1000, 1000, 1000, true));
        // It ended when this cell began.
        assert_eq!(cells[4], cell(0, 0, 0, true));
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(worked(&Lanes::default(), Duration::from_secs(1), 0), Vec::new());
        let cells = worked(&Lanes::default(), Duration::from_secs(1), 3);
        assert!(cells.iter().all(|cell| cell.is_none_or(|(worked, _)| worked == Worked::default())));
    }
}
