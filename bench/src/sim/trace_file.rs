//! Public traces of requests: Mooncake's JSON lines and Azure's CSV.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use faser_engine::sim::{Trace, TracedRequest};
use serde::Deserialize;

use crate::BenchError;

/// A larger file is refused. The public traces have 0.3 to 3 MB for an hour.
const MOST_BYTES: u64 = 256 << 20;
/// More tokens than any model's context: a line that says more is wrong.
const MOST_TOKENS: usize = 100_000_000;
/// A year, in milliseconds: a line that is further from the beginning is wrong.
const MOST_MS: f64 = 3.2e10;
/// The first line of an Azure trace.
const AZURE: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// A line of Mooncake's.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mooncake {
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Reads a trace, to be replayed at so many times its speed. Which of the two formats it has is told by its first line.
///
/// # Errors
/// The file cannot be read, is too large, or has a line that is none of its format's: named by its number.
pub fn read_trace(path: &Path, speed: f64) -> Result<Trace, BenchError> {
    let refuse = |why: String| BenchError::Trace { path: path.display().to_string(), why };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| refuse(error.to_string()))?;
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| refuse(error.to_string()))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(refuse(format!("it is larger than {} MiB: cut it", MOST_BYTES >> 20)));
    }
    let requests = requests(&text).map_err(refuse)?;
    if requests.is_empty() {
        return Err(refuse("it has no requests".to_owned()));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    Ok(Trace::new(name, speed, requests))
}

/// The requests of a file, or what is wrong with which line.
fn requests(text: &str) -> Result<Vec<TracedRequest>, String> {
    let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty()).peekable();
    let read: fn(&str) -> Result<TracedRequest, String> = match lines.peek() {
        Some((_, line)) if line.starts_with('{') => mooncake,
        Some((_, line)) if line.trim_start_matches('\u{feff}') == AZURE => {
            lines.next();
            azure
        }
        Some((number, _)) => {
            return Err(format!(
                "line {number} is neither a JSON object, as Mooncake's, nor `{AZURE}`, as Azure's"
            ));
        }
        None => return Ok(Vec::new()),
    };
    lines.map(|(number, line)| read(line).map_err(|why| format!("line {number}: {why}"))).collect()
}

fn mooncake(line: &str) -> Result<TracedRequest, String> {
    let Mooncake { timestamp, input_length, output_length, hash_ids } =
        serde_json::from_str(line).map_err(|error| error.to_string())?;
    if !(0.0..=MOST_MS).contains(&timestamp) {
        return Err(format!("`timestamp` {timestamp} is not milliseconds, from 0 on and within a year"));
    }
    let blocks = input_length.div_ceil(Trace::BLOCK_TOKENS);
    if hash_ids.len() > blocks {
        return Err(format!(
            "{} `hash_ids` are more than the {blocks} blocks of {} tokens that {input_length} tokens have",
            hash_ids.len(),
            Trace::BLOCK_TOKENS
        ));
    }
    request(Duration::from_secs_f64(timestamp / 1e3), input_length, output_length, hash_ids)
}

fn azure(line: &str) -> Result<TracedRequest, String> {
    let columns: Vec<&str> = line.split(',').map(str::trim).collect();
    let [at, prompt, output] = columns.as_slice() else {
        return Err(format!("it has {} columns, not 3", columns.len()));
    };
    let tokens = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number of tokens"));
    let time = time(at).ok_or_else(|| format!("`{at}` is no time such as 2023-11-16 18:17:03.9799600"))?;
    request(time, tokens(prompt)?, tokens(output)?, Vec::new())
}

fn request(at: Duration, prompt: usize, output: usize, blocks: Vec<u64>) -> Result<TracedRequest, String> {
    if prompt.max(output) > MOST_TOKENS {
        return Err(format!("{} tokens are more than any request has", prompt.max(output)));
    }
    Ok(TracedRequest { at, prompt_tokens: prompt, output_tokens: output, blocks: blocks.into() })
}

/// Time since 1970 of `2023-11-16 18:17:03.9799600`, in UTC.
fn time(text: &str) -> Option<Duration> {
    let text = text.strip_suffix("+00:00").or_else(|| text.strip_suffix('Z')).unwrap_or(text);
    let (date, clock) = text.split_once([' ', 'T'])?;
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let number = |text: &str, digits: usize| -> Option<u64> {
        let all = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| all)
    };
    let three = |text: &str, by: char, digits: [usize; 3]| -> Option<[u64; 3]> {
        let mut parts = text.split(by);
        let mut next = |digits| number(parts.next()?, digits);
        let found = [next(digits[0])?, next(digits[1])?, next(digits[2])?];
        parts.next().is_none().then_some(found)
    };
    let [year, month, day] = three(date, '-', [4, 2, 2])?;
    let [hour, minute, second] = three(clock, ':', [2, 2, 2])?;
    let in_range = year >= 1970
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    let fraction_digits = fraction.len();
    if !in_range || !(1..=9).contains(&fraction_digits) {
        return None;
    }
    let nanos = number(fraction, fraction_digits)? * 10u64.pow(9 - fraction_digits as u32);
    // Days from the civil calendar (Hinnant): years begin in March, so that the leap day is the last.
    let (years, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * years + years / 4 - years / 100 + years / 400 + (153 * months + 2) / 5 + day - 1 - 719_468;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some(Duration::new(seconds, u32::try_from(nanos).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file with this content.
    fn read(name: &str, content: &[u8]) -> Result<Trace, String> {
        let file = std::env::temp_dir().join(format!("faser-{}-{name}", std::process::id()));
        std::fs::write(&file, content).unwrap();
        let trace = read_trace(&file, 1.0);
        std::fs::remove_file(&file).unwrap();
        trace.map_err(|error| error.to_string())
    }

    #[test]
    fn mooncakes_lines_are_read() {
        let trace = read(
            "good.jsonl",
            b"{\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 14]}\r\n\n\
              {\"timestamp\": 2500.5, \"input_length\": 512, \"output_length\": 7}\n",
        );
        let trace = trace.unwrap();
        let [first, second] = trace.requests() else { panic!("{trace:?}") };
        assert_eq!((first.prompt_tokens, first.output_tokens, &*first.blocks), (600, 5, [0, 14].as_slice()));
        assert_eq!((second.at, second.blocks.len()), (Duration::from_micros(1_500_500), 0));
        assert!(trace.shares_blocks());
    }

    #[test]
    fn azures_lines_are_read() {
        let trace = read(
            "good.csv",
            b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9000000,374,44\n2023-11-17 00:00:01.1,396,109\n",
        );
        let trace = trace.unwrap();
        let [first, second] = trace.requests() else { panic!("{trace:?}") };
        assert_eq!((first.prompt_tokens, first.output_tokens), (374, 44));
        assert_eq!((second.at, second.prompt_tokens), (Duration::from_millis(1200), 396));
        assert!(!trace.shares_blocks());
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        let seconds = |text: &str| time(text).map(|time| time.as_secs());
        assert_eq!(seconds("1970-01-01 00:00:00"), Some(0));
        assert_eq!(seconds("2023-11-16 18:17:03.9799600"), Some(1_700_158_623));
        assert_eq!(seconds("2024-03-01 00:00:00"), seconds("2024-02-29 23:59:59").map(|s| s + 1));
        assert_eq!(time("2024-05-10 00:00:00.009930+00:00").map(|time| time.subsec_micros()), Some(9930));
        for wrong in [
            "",
            "2023-11-16",
            "2023-13-01 00:00:00",
            "2023-11-16 24:00:00",
            "1969-12-31 00:00:00",
            "2023-11-16 18:17:03.",
            "2023-11-16 18:17:03.1234567890",
            "+023-11-16 18:17:03",
            "2023-11-16 18:17",
        ] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_file_and_line() {
        let good = "{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": []}\n";
        let azure = |line: &str| format!("{AZURE}\n2023-11-16 18:15:46.6805900,374,44\n{line}\n");
        for (content, why) in [
            (format!("{good}\n{{\"timestamp\": 0"), "line 3: "),
            (format!("{good}{}", good.replace("600", "-1")), "line 2: "),
            (format!("{good}{}", good.replace("600", "100000001")), "line 2: 100000001 tokens"),
            (
                format!("{good}{}", good.replace("[]", "[1, 2, 3]")),
                "line 2: 3 `hash_ids` are more than the 2",
            ),
            (good.replace("\"timestamp\": 0", "\"timestamp\": -1"), "line 1: `timestamp` -1"),
            (good.replace("}", ", \"delay\": 3}"), "line 1: unknown field `delay`"),
            (azure("2023-11-16 18:15:46.6805900,374"), "line 3: it has 2 columns"),
            (azure("yesterday,374,44"), "line 3: `yesterday` is no time"),
            (azure("2023-11-16 18:15:46.6805900,374,many"), "line 3: `many` is no number of tokens"),
            ("a,b,c\n1,2,3\n".to_owned(), "line 1 is neither"),
            (String::new(), "it has no requests"),
            (format!("{AZURE}\n"), "it has no requests"),
        ] {
            let refused = read("bad", content.as_bytes()).unwrap_err();
            assert!(refused.contains("-bad: ") && refused.contains(why), "{content}: {refused}");
        }
        assert!(read("bytes", &[0xff, 0xfe, 0x00]).unwrap_err().contains("-bytes: "));
        let missing = read_trace(Path::new("/nowhere/trace.jsonl"), 1.0).unwrap_err().to_string();
        assert!(missing.contains("/nowhere/trace.jsonl: "), "{missing}");
    }
}
