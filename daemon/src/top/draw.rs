//! One frame of `faser top`: what there is room for, of a header, panels and a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Clear, Paragraph};

use super::panels;
use super::state::State;

/// Smaller than this there is room for a few lines of text only.
const LEAST_WIDTH: u16 = 50;
const LEAST_HEIGHT: u16 = 10;
/// Lines of the panels, borders and all.
const LOAD_LINES: u16 = 6;
const LANES_LINES: u16 = 5;
const CHART_LINES: [u16; 2] = [9, 7];
/// Lines of the table that it is not shown below.
const TABLE_LINES: u16 = 4;

const KEYS: [(&str, &str); 6] =
    [("q", "quit"), ("p", "pause"), ("+", "slower"), ("-", "faster"), ("r", "replica"), ("h", "help")];

const HELP: &str = "\
 q, Ctrl-C  quit
 p, space   pause, or go on
 + -        events less often, more often
 r          the next replica, or all together
 h, ?       this

 Rates, shares and k are over the last 5 s.
 k: verified chunks by their proposals, in %.
 Lanes: how much of its time each worked;
 drafting is green while a verify pass runs,
 red where chunks of it were cancelled.";

/// A panel's frame.
pub(super) fn panel<'a>(title: impl Into<Line<'a>>) -> Block<'a> {
    Block::bordered()
        .border_type(BorderType::Rounded)
        .border_style(Style::new().fg(Color::DarkGray))
        .title(title.into().style(Style::new().add_modifier(Modifier::BOLD)))
}

/// What is quieter than the rest.
pub(super) fn dim<'a>(text: impl Into<String>) -> Span<'a> {
    Span::styled(text.into(), Style::new().fg(Color::DarkGray))
}

/// Draws all of it.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State) {
    let area = frame.area();
    if area.width < LEAST_WIDTH || area.height < LEAST_HEIGHT {
        frame.render_widget(Paragraph::new(panels::in_few_words(state)), area);
    } else {
        let [head, body, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(area);
        header(frame, head, state);
        footer(frame, keys, state);
        match state.figures() {
            Some(figures) => all(frame, body, state, figures),
            None => frame.render_widget(Paragraph::new(waiting(state)).block(panel(" faser ")), body),
        }
    }
    if state.help {
        help(frame, area);
    }
}

/// What is there instead of figures.
fn waiting(state: &State) -> String {
    match (&state.gone, &state.status) {
        (None, None) => "Connecting.".to_owned(),
        (Some(why), _) => format!("Nobody answers: {why}. Waiting."),
        (None, Some(status)) => status.detail.clone(),
    }
}

/// The panels, those first that say most.
fn all(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &crate::admin::snapshot::Figures) {
    let mut left = area.height;
    let mut lines = |wanted: u16, beside: u16| {
        let given = if left >= wanted + beside { wanted } else { 0 };
        left -= given;
        given
    };
    let load = lines(LOAD_LINES, 0);
    let lanes = lines(LANES_LINES, 0);
    // Both, or the table alone.
    let charts = CHART_LINES
        .into_iter()
        .map(|wanted| lines(wanted, TABLE_LINES))
        .find(|given| *given > 0)
        .unwrap_or(0);
    let table = if left >= TABLE_LINES { left } else { 0 };
    let heights = [load, lanes, charts, table].map(Constraint::Length);
    let [load, lanes, charts, table] = Layout::vertical(heights).areas(area);
    if load.height > 0 {
        let [throughput, others] = Layout::horizontal([Constraint::Fill(1); 2]).areas(load);
        panels::throughput(frame, throughput, state, figures);
        panels::load(frame, others, state, figures);
    }
    if lanes.height > 0 {
        panels::lanes(frame, lanes, state, figures);
    }
    if charts.height > 0 {
        let [lengths, places] = Layout::horizontal([Constraint::Fill(1); 2]).areas(charts);
        panels::lengths(frame, lengths, figures);
        panels::places(frame, places, figures);
    }
    if table.height > 0 {
        panels::requests(frame, table, state);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let badge =
        |text: &str, color| Span::styled(format!(" {text} "), Style::new().fg(Color::Black).bg(color));
    let mut spans = vec![" faser ".bold()];
    let (mut right, mut words) = (String::new(), String::new());
    if let Some(status) = &state.status {
        spans.push(match (&state.gone, status.state.as_ref()) {
            (Some(_), _) => badge("no daemon", Color::Red),
            (None, "serving") => badge("serving", Color::Green),
            (None, "not-ready") => badge("not-ready", Color::Red),
            (None, other) => badge(other, Color::Yellow),
        });
        if let Some(model) = &status.model {
            words = format!(" {} on {}", model.name, model.device_kind);
            if let Some(policy) = &status.policy {
                words.push_str(&format!(", policy {}", policy.value("policy").as_str().unwrap_or_default()));
            }
        }
        // Why nothing is taken says more than what would be.
        if status.state != "serving" {
            words = format!(" {}", status.detail);
        }
        right = format!("{} up {} ", status.version, panels::time(status.uptime_s));
    } else if state.gone.is_some() {
        spans.push(badge("no daemon", Color::Red));
    }
    if let Some(why) = &state.gone {
        words = format!(" {why}; waiting");
    }
    if state.paused {
        spans.extend([Span::raw(" "), badge("paused", Color::Magenta)]);
    }
    spans.push(Span::raw(words));
    let [line, end] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(right.chars().count() as u16 + 1)])
            .areas(area);
    frame.render_widget(Paragraph::new(Line::from(spans)), line);
    frame.render_widget(Paragraph::new(Line::from(dim(right)).right_aligned()), end);
}

fn footer(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let mut spans = vec![Span::raw(" ")];
    for (key, what) in KEYS {
        spans.extend([Span::raw(key).bold(), dim(format!(" {what}  "))]);
    }
    let shown = match state.replica {
        Some(number) => format!("replica {number}, "),
        None => String::new(),
    };
    let right = format!("{shown}every {} ", panels::time(state.every.as_secs_f64()));
    let [line, end] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(right.chars().count() as u16)])
            .areas(area);
    frame.render_widget(Paragraph::new(Line::from(spans)), line);
    frame.render_widget(Paragraph::new(dim(right)), end);
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let (width, height) = (48.min(area.width), (HELP.lines().count() as u16 + 2).min(area.height));
    let (x, y) = ((area.width - width) / 2, (area.height - height) / 2);
    let area = Rect { x: area.x + x, y: area.y + y, width, height };
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(panel(" help ")), area);
}
