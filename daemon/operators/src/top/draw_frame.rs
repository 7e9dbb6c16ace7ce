//! One frame of `faser top`: what there is room for, of a header, panels and a line of keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, BorderType, Cell, Clear, Paragraph, Row, Table};

use super::bars::{columns, meter};
use super::lane_cells::{self, AHEAD, CANCELLED, DRAFT, VERIFY};
use super::state::{Lanes, State};
use crate::admin::snapshot::{Figures, PolicyView, PoolRow, RequestRow};

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
        frame.render_widget(Paragraph::new(in_few_words(state)), area);
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
fn all(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &Figures) {
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
        self::throughput(frame, throughput, state, figures);
        self::load(frame, others, state, figures);
    }
    if lanes.height > 0 {
        self::lanes(frame, lanes, state, figures);
    }
    if charts.height > 0 {
        let [lengths, places] = Layout::horizontal([Constraint::Fill(1); 2]).areas(charts);
        self::lengths(frame, lengths, figures);
        self::places(frame, places, figures);
    }
    if table.height > 0 {
        self::requests(frame, table, state);
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
        if status.replicas.iter().any(|replica| replica.draft_retired.is_some()) {
            words.push_str(", draft retired");
        }
        // Why nothing is taken says more than what would be.
        if status.state != "serving" {
            words = format!(" {}", status.detail);
        }
        right = format!("{} up {} ", status.version, time(status.uptime_s));
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
    let right = format!("{shown}every {} ", time(state.every.as_secs_f64()));
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

/// Cells of a column of a chart, and from one to the next.
const COLUMN: (u16, u16) = (3, 4);
/// Cells of the names before meters.
const NAMES: u16 = 10;

/// A time with its unit.
pub(super) fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}

fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn percent(share: Option<f64>) -> String {
    or_dash(share, |share| format!("{:.0} %", share * 100.0))
}

fn rate(rate: f64) -> String {
    if rate < 10.0 { format!("{rate:.1}") } else { format!("{rate:.0}") }
}

/// Draws the frame of a panel; the room in it.
fn framed<'a>(frame: &mut Frame<'_>, area: Rect, title: impl Into<Line<'a>>) -> Rect {
    let block = panel(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

/// What fits anywhere.
pub(super) fn in_few_words(state: &State) -> Text<'static> {
    let Some(status) = &state.status else {
        return Text::raw(state.gone.clone().unwrap_or_else(|| "connecting".to_owned()));
    };
    let word = if state.gone.is_some() { "no daemon".to_owned() } else { status.state.to_string() };
    let mut lines = vec![Line::from(vec!["faser ".bold(), Span::raw(word)])];
    if let Some(figures) = state.figures() {
        lines.extend([
            Line::raw(format!("{} tokens/s", rate(figures.output_tokens_per_s))),
            Line::raw(format!("{} running, {} waiting", figures.running, figures.waiting)),
            Line::raw(format!("accepted {}", percent(figures.acceptance))),
            Line::raw(format!("KV {}", percent(Some(used(figures.target_kv))))),
        ]);
    }
    Text::from(lines)
}

/// Tokens per second, now and lately.
pub(super) fn throughput(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &Figures) {
    let inner = framed(frame, area, " output tokens/s ");
    let [words, line] = Layout::vertical([Constraint::Length(2), Constraint::Min(0)]).areas(inner);
    let text = vec![
        Line::from(vec![
            Span::styled(rate(figures.output_tokens_per_s), Style::new().fg(VERIFY).bold()),
            dim(format!("  of prompts {}", rate(figures.prompt_tokens_per_s))),
        ]),
        Line::from(vec![
            Span::raw(rate(figures.requests_per_s)),
            dim(" requests/s  "),
            Span::raw(rate(figures.passes_per_s)),
            dim(" passes/s of "),
            Span::raw(or_dash(figures.rows_per_pass, rate)),
            dim(" rows"),
        ]),
    ];
    frame.render_widget(Paragraph::new(text), words);
    let most = state.rates.iter().copied().fold(1.0, f64::max);
    let shown = state.rates.len().saturating_sub(usize::from(line.width));
    let heights: Vec<f64> = state.rates.iter().skip(shown).map(|rate| rate / most).collect();
    // The latest is at the right.
    let empty = line.width - heights.len().min(usize::from(line.width)) as u16;
    let line = Rect { x: line.x + empty, width: line.width - empty, ..line };
    columns(frame.buffer_mut(), line, &heights, (1, 1), VERIFY);
}

fn used(pool: PoolRow) -> f64 {
    pool.total.saturating_sub(pool.free) as f64 / pool.total.max(1) as f64
}

/// Requests, KV, and what lanes have of the device.
pub(super) fn load(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &Figures) {
    let steering = figures.steering.map_or_else(String::new, |steering| format!(": {steering}"));
    let inner = framed(frame, area, format!(" load{steering} "));
    let policy = state.status.as_ref().and_then(|status| status.policy.as_ref());
    // Of all replicas together nobody has said how many they may be.
    let bound = policy
        .filter(|_| state.replica.is_some() || state.status.as_ref().is_none_or(|s| s.replicas.len() < 2));
    let most =
        |key: &str| or_dash(bound, |policy: &PolicyView| policy.value(key).as_u64().unwrap_or(0).to_string());
    let requests = Line::from(vec![
        Span::styled(figures.running.to_string(), Style::new().bold()),
        dim(format!(" running of {}  ", most("max_running"))),
        Span::styled(figures.waiting.to_string(), Style::new().bold()),
        dim(format!(" waiting of {}", most("max_waiting"))),
    ]);
    let lines: [Rect; 4] = Layout::vertical([Constraint::Length(1); 4]).areas(inner);
    frame.render_widget(Paragraph::new(requests), lines[0]);
    for (line, name, pool) in
        [(lines[1], "target KV", figures.target_kv), (lines[2], "draft KV", figures.draft_kv)]
    {
        let words = format!(" {} of {} blocks", pool.total.saturating_sub(pool.free), pool.total);
        named_meter(frame, line, name, words, &[(used(pool), Color::Magenta)]);
    }
    let model = state.status.as_ref().and_then(|status| status.model.as_ref());
    let shares = model.and_then(|model| Some((model, model.partitions.get(figures.partition)?)));
    match shares {
        Some((model, shares)) if figures.partition > 0 => {
            let words = format!(" {} + {} {}", shares.draft, shares.verify, model.unit);
            let part = shares.draft as f64 / (shares.draft + shares.verify).max(1) as f64;
            named_meter(frame, lines[3], "partition", words, &[(part, AHEAD), (1.0 - part, VERIFY)]);
        }
        _ => named_meter(frame, lines[3], "partition", " all, in turns".to_owned(), &[]),
    }
}

fn named_meter(frame: &mut Frame<'_>, area: Rect, name: &str, words: String, parts: &[(f64, Color)]) {
    let width = words.chars().count() as u16;
    let cells = [Constraint::Length(NAMES), Constraint::Min(0), Constraint::Length(width)];
    let [left, bar, right] = Layout::horizontal(cells).areas(area);
    frame.render_widget(Paragraph::new(name.to_owned()), left);
    meter(frame.buffer_mut(), bar, parts);
    frame.render_widget(Paragraph::new(dim(words)), right);
}

/// How much the lanes work, and when they did.
pub(super) fn lanes(frame: &mut Frame<'_>, area: Rect, state: &State, figures: &Figures) {
    let number = state.replica.unwrap_or(0);
    let several = state.status.as_ref().is_some_and(|status| status.replicas.len() > 1);
    let whose = if several { format!(" of replica {number}") } else { String::new() };
    let title = Line::from(vec![
        Span::raw(format!(" lanes{whose}, the last {}  ", time(state.span().as_secs_f64()))),
        Span::styled("■", Style::new().fg(VERIFY)),
        dim(" verify "),
        Span::styled("■", Style::new().fg(DRAFT)),
        dim(" draft "),
        Span::styled("■", Style::new().fg(AHEAD)),
        dim(" under verification "),
        Span::styled("■", Style::new().fg(CANCELLED)),
        dim(" cancelled "),
    ]);
    let inner = framed(frame, area, title);
    let [words, picture] = Layout::horizontal([Constraint::Length(14), Constraint::Min(0)]).areas(inner);
    let busy = |name: &str, share: f64| Line::from(format!("{name:<7} {:>4}", percent(Some(share))));
    // Said where there are any.
    let hits =
        figures.outcome_hits.map(|hits| [Span::raw(percent(Some(hits))), dim(" of verdicts prepared for, ")]);
    let overlapped = Line::from_iter(
        [Span::raw(percent(figures.overlapped)), dim(" of passes overlapped, ")]
            .into_iter()
            .chain(hits.into_iter().flatten())
            .chain([
                Span::raw(rate(figures.chunks_cancelled_per_s)),
                dim(" chunks/s cancelled, "),
                Span::raw(rate(figures.rows_pruned_per_s)),
                dim(" rows/s pruned"),
            ]),
    );
    let text = vec![busy("verify", figures.verify_busy), busy("draft", figures.draft_busy)];
    frame.render_widget(Paragraph::new(text), words);
    let nothing = Lanes::default();
    let shown = state.lanes.get(&number).unwrap_or(&nothing);
    lane_cells::draw(
        frame.buffer_mut(),
        Rect { height: picture.height.min(2), ..picture },
        shown,
        state.span(),
    );
    if picture.height > 2 {
        let below = Rect { x: words.x, y: words.y + 2, width: words.width + picture.width, height: 1 };
        frame.render_widget(Paragraph::new(overlapped), below);
    }
}

/// A chart of shares as columns, up to `most`, with numbers below them, `first` the number of the first.
fn chart(frame: &mut Frame<'_>, area: Rect, shares: &[f64], most: f64, first: usize, color: Color) {
    let lines = [Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)];
    let [values, picture, names] = Layout::vertical(lines).areas(area);
    // Those that fit whole.
    let shares = &shares[..shares.len().min(usize::from((area.width + COLUMN.1 - COLUMN.0) / COLUMN.1))];
    let heights: Vec<f64> = shares.iter().map(|share| share / most.max(f64::MIN_POSITIVE)).collect();
    columns(frame.buffer_mut(), picture, &heights, COLUMN, color);
    for (place, share) in shares.iter().enumerate() {
        let cell = |y: u16| Rect { x: area.x + place as u16 * COLUMN.1, y, width: COLUMN.0, height: 1 };
        let value = if *share > 0.0 { format!("{:>2.0}", share * 100.0) } else { String::new() };
        frame.render_widget(Paragraph::new(Span::raw(value)), cell(values.y));
        frame.render_widget(Paragraph::new(dim(format!("{:>2}", place + first))), cell(names.y));
    }
}

/// Speculative lengths of the verified chunks.
pub(super) fn lengths(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let tokens = or_dash(figures.tokens_per_chunk, |tokens| format!("{tokens:.2}"));
    let title = vec![Span::raw(" k "), dim(format!("in % of chunks, of {tokens} tokens each "))];
    let inner = framed(frame, area, title);
    let all = figures.k_histogram.iter().sum::<u64>().max(1) as f64;
    let shares: Vec<f64> = figures.k_histogram.iter().map(|count| *count as f64 / all).collect();
    let most = shares.iter().copied().fold(0.0, f64::max);
    chart(frame, inner, &shares, most, 0, VERIFY);
}

/// Acceptance by place.
pub(super) fn places(frame: &mut Frame<'_>, area: Rect, figures: &Figures) {
    let title = vec![
        Span::raw(" accepted "),
        Span::raw(percent(figures.acceptance)),
        dim(", by place in the chunk, in % "),
    ];
    let inner = framed(frame, area, title);
    let shares: Vec<f64> = figures.acceptance_by_position.iter().map(|share| share.unwrap_or(0.0)).collect();
    chart(frame, inner, &shares, 1.0, 1, AHEAD);
}

/// The oldest requests.
pub(super) fn requests(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let requests = state.requests();
    let block = panel(" oldest requests ");
    if requests.is_empty() {
        frame.render_widget(Paragraph::new(dim("none")).block(block), area);
        return;
    }
    // The columns that say least go first.
    let columns: &[Column] = if area.width >= 84 { &COLUMNS } else { &COLUMNS[..6] };
    let cell = |text: String| Cell::from(Line::from(text).right_aligned());
    let rows =
        requests.iter().map(|request| Row::new(columns.iter().map(|column| cell((column.show)(request)))));
    let header = Row::new(columns.iter().map(|column| cell(column.name.to_owned())))
        .style(Style::new().fg(Color::DarkGray));
    let widths = columns.iter().map(|column| Constraint::Min(column.width));
    frame.render_widget(Table::new(rows, widths).header(header).block(block), area);
}

struct Column {
    name: &'static str,
    width: u16,
    show: fn(&RequestRow) -> String,
}

const fn column(name: &'static str, width: u16, show: fn(&RequestRow) -> String) -> Column {
    Column { name, width, show }
}

const COLUMNS: [Column; 9] = [
    column("request", 9, |request| request.id.clone()),
    column("state", 8, |request| request.state.to_string()),
    column("k", 3, |request| request.k.to_string()),
    column("accepted", 8, |request| percent(request.acceptance)),
    column("output", 11, |request| format!("{} of {}", request.output_tokens, request.max_new_tokens)),
    column("age", 7, |request| time(request.age_s)),
    column("tokens/pass", 11, |request| or_dash(request.tokens_per_pass, |tokens| format!("{tokens:.2}"))),
    column("prompt", 7, |request| request.prompt_tokens.to_string()),
    column("first token", 11, |request| or_dash(request.ttft_s, time)),
];
