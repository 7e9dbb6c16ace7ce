//! `faser top`: the daemon live in a terminal, by the events of its admin socket.
//!
//! ```text
//!   feed (a thread: events of the socket) --> state (the last snapshot, the past) --> draw_frame (lane_cells, bars)
//! ```

mod bars;
mod draw_frame;
mod feed;
mod lane_cells;
mod state;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use faser_terminal::{Signals, println};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;

use self::feed::{Feed, Message, statuses};
use self::state::{Asked, State};
use crate::ctl::socket_client::{Client, CtlError, STANDARD_SOCKET, of_pair};

/// How long keys are waited for before events are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The size of a frame that goes to no terminal, in columns and lines.
const SIZE: (u16, u16) = (100, 36);

/// `faser top`.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys: q quit, p pause, + and - events less and more often, r the next replica, h help. Of a daemon that goes away it waits for the return.

Exit status: 0 done, 1 no terminal, 2 wrong use, 3 no daemon there.

Examples:
  faser top
  faser top --socket /tmp/admin.sock --interval 0.5
  faser top --once --size 120x40                  one frame as text")]
pub struct TopArgs {
    /// The daemon's admin socket.
    #[arg(long, value_name = "PATH", default_value = STANDARD_SOCKET)]
    pub socket: PathBuf,
    /// Which of several pairs; without it the first.
    #[arg(long, value_name = "NAME")]
    pub pair: Option<String>,
    /// Time between two looks, 0.1 to 60 s.
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Print one frame as text, after two looks, so that the lanes have a past.
    #[arg(long)]
    pub once: bool,
    /// The size of that frame; without it the terminal's.
    #[arg(long, value_name = "COLUMNSxLINES", requires = "once", value_parser = size)]
    pub size: Option<(u16, u16)>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "write seconds, such as 0.5".to_owned())?;
    if (0.1..=60.0).contains(&seconds) {
        Ok(Duration::from_secs_f64(seconds))
    } else {
        Err("must be from 0.1 to 60".to_owned())
    }
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "write COLUMNSxLINES, such as 120x40; each up to 500".to_owned();
    let (columns, lines) = text.split_once('x').ok_or_else(wrong)?;
    let number = |text: &str| text.parse().ok().filter(|number| (1..=500).contains(number)).ok_or_else(wrong);
    Ok((number(columns)?, number(lines)?))
}

/// Shows the daemon until its user quits.
///
/// # Errors
/// The daemon is not there at first, or there is no terminal.
pub fn top(args: &TopArgs) -> Result<(), CtlError> {
    if args.once {
        return once(args);
    }
    // A wrong socket is better said at once.
    Client::new(&args.socket).get(&of_pair("/v1/status", args.pair.as_deref()))?;
    if !io::stdout().is_terminal() {
        return Err(CtlError::Output("standard output is no terminal: use `faser top --once`".to_owned()));
    }
    let stopped = stop_on_signals();
    let failed = |err: io::Error| CtlError::Output(format!("the terminal: {err}"));
    // Has the terminal put back on a panic too.
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let shown = run(&mut terminal, args, &stopped);
    ratatui::restore();
    shown.map_err(failed)
}

fn run(terminal: &mut ratatui::DefaultTerminal, args: &TopArgs, stopped: &AtomicBool) -> io::Result<()> {
    let mut state = State::new(args.interval);
    let mut feed = Feed::start(&args.socket, args.pair.as_deref(), state.every);
    let mut changed = true;
    while !stopped.load(Ordering::Relaxed) {
        while let Some(message) = feed.next() {
            state.take(message);
            changed = true;
        }
        if changed {
            terminal.draw(|frame| draw_frame::draw(frame, &state))?;
        }
        changed = event::poll(LOOK_EVERY)?;
        if !changed {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let pressed = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => 'q',
            KeyCode::Esc if state.help => 'h',
            KeyCode::Char(pressed) => pressed,
            _ => continue,
        };
        match state.press(pressed) {
            Asked::Quit => return Ok(()),
            Asked::Interval => feed.again(state.every),
            Asked::Nothing => {}
        }
    }
    Ok(())
}

/// Told by SIGTERM, and by SIGINT from elsewhere: in a raw terminal Ctrl-C is a key.
fn stop_on_signals() -> Arc<AtomicBool> {
    let stopped = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stopped);
    std::thread::spawn(move || {
        actix_web::rt::System::new().block_on(async {
            // Without them a signal ends the process, as it always would.
            if let Ok(mut signals) = Signals::take_over() {
                signals.next().await;
                told.store(true, Ordering::Relaxed);
            }
        });
    });
    stopped
}

/// One frame on standard output.
fn once(args: &TopArgs) -> Result<(), CtlError> {
    let mut state = State::new(args.interval);
    for status in statuses(&args.socket, args.pair.as_deref(), args.interval)?.take(2) {
        state.take(Message::Status(Box::new(status?)));
    }
    let at_terminal = || terminal::size().ok().filter(|_| io::stdout().is_terminal());
    let text = text(&frame(&state, args.size.or_else(at_terminal).unwrap_or(SIZE)));
    println(&text).map_err(|err| CtlError::Output(err.to_string()))
}

/// A frame of that many columns and lines.
fn frame(state: &State, (columns, lines): (u16, u16)) -> Buffer {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(columns, lines));
    let Ok(frame) = terminal.draw(|frame| draw_frame::draw(frame, state));
    frame.buffer.clone()
}

/// A frame without its colours.
fn text(buffer: &Buffer) -> String {
    let line = |y| {
        let cells: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        cells.trim_end().to_owned()
    };
    (0..buffer.area.height).map(line).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}
