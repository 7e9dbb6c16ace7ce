//! `strftime_now` of chat templates: today's date and time, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A point of time as a calendar shows it.
struct Moment {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    second_of_day: i64,
}

impl Moment {
    fn at(time: SystemTime) -> Moment {
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()).cast_signed();
        let days = seconds.div_euclid(86_400);
        // The 400-year cycle of the Gregorian calendar, counted from 1 March of year 0, so that a leap day ends
        // a year.
        let shifted = days + 719_468;
        let (cycle, day_of_cycle) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_cycle =
            (day_of_cycle - day_of_cycle / 1_460 + day_of_cycle / 36_524 - day_of_cycle / 146_096) / 365;
        let day_of_year = day_of_cycle - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = (month_from_march + 2) % 12;
        Moment {
            year: 400 * cycle + year_of_cycle + i64::from(month < 2),
            month: usize::try_from(month).unwrap_or(0),
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            weekday: usize::try_from((days + 4).rem_euclid(7)).unwrap_or(0),
            second_of_day: seconds.rem_euclid(86_400),
        }
    }
}

/// Formats a time by the codes that chat templates use; any other code is refused.
pub(in crate::text) fn format(time: SystemTime, pattern: &str) -> Result<String, String> {
    let moment = Moment::at(time);
    let (hour, minute, second) =
        (moment.second_of_day / 3_600, moment.second_of_day / 60 % 60, moment.second_of_day % 60);
    let mut out = String::new();
    let mut rest = pattern.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => out.push_str(&moment.year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", moment.year.rem_euclid(100))),
            Some('m') => out.push_str(&format!("{:02}", moment.month + 1)),
            Some('d') => out.push_str(&format!("{:02}", moment.day)),
            Some('B') => out.push_str(MONTHS[moment.month]),
            Some('b') => out.push_str(&MONTHS[moment.month][..3]),
            Some('A') => out.push_str(DAYS[moment.weekday]),
            Some('a') => out.push_str(&DAYS[moment.weekday][..3]),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => return Err(format!("strftime_now: the code %{other} is not supported")),
            None => return Err("strftime_now: a % stands at the end".to_owned()),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: u64, pattern: &str) -> String {
        format(UNIX_EPOCH + Duration::from_secs(seconds), pattern).unwrap()
    }

    #[test]
    fn known_dates() {
        assert_eq!(at(0, "%d %b %Y"), "01 Jan 1970");
        assert_eq!(at(951_782_400, "%A %d %B %Y"), "Tuesday 29 February 2000");
        assert_eq!(at(1_704_067_199, "%a %Y-%m-%d %H:%M:%S"), "Sun 2023-12-31 23:59:59");
        assert_eq!(at(4_107_542_400, "%y/%m/%d %I %p %%"), "00/03/01 12 AM %");
    }

    #[test]
    fn an_unknown_code_is_refused() {
        assert!(format(UNIX_EPOCH, "%Q").unwrap_err().contains("%Q"));
        assert!(format(UNIX_EPOCH, "100%").is_err());
    }
}
