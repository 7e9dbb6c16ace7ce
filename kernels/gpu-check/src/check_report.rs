//! What a check found: figures, each with what it is held against.

use std::fmt;

/// What a figure is held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// More is wrong.
    AtMost(f64),
    /// Less is wrong.
    AtLeast(f64),
    /// What the hardware cannot do better than, as measured beside it; to be compared, not to be passed.
    Floor(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtMost(most) => write!(f, "<= {}", Short(*most)),
            Bound::AtLeast(least) => write!(f, ">= {}", Short(*least)),
            Bound::Floor(floor) => write!(f, "{}", Short(*floor)),
        }
    }
}

/// Four digits of a number.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.0.abs();
        if size == 0.0 || size.fract() == 0.0 && size < 1e7 {
            write!(f, "{}", self.0)
        } else if !(1e-3..1e7).contains(&size) {
            write!(f, "{:.2e}", self.0)
        } else {
            let digits = (3 - size.log10().floor() as i32).clamp(0, 6) as usize;
            write!(f, "{:.digits$}", self.0)
        }
    }
}

/// What to think of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it must be.
    Right,
    /// It is not.
    Wrong,
    /// It was measured; nothing depends on it here.
    Measured,
    /// It says nothing on this device: a GPU that is none, or shapes too small to be timed.
    NoMeaning,
}

impl Verdict {
    /// In a table and in JSON.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Verdict::Right => "right",
            Verdict::Wrong => "WRONG",
            Verdict::Measured => "measured",
            Verdict::NoMeaning => "no meaning here",
        }
    }
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Of what.
    pub what: String,
    /// The number, if it is one.
    pub value: Option<f64>,
    /// Its unit.
    pub unit: &'static str,
    /// What it is held against.
    pub bound: Option<Bound>,
    /// What to think of it.
    pub verdict: Verdict,
    /// For the files alone; a table would be too long.
    pub detail: bool,
}

impl Figure {
    /// The figure over its floor, if it has one.
    #[must_use]
    pub fn of_floor(&self) -> Option<f64> {
        match (self.value, self.bound) {
            (Some(value), Some(Bound::Floor(floor))) => Some(value / floor),
            _ => None,
        }
    }

    /// What to think of it; of a time also how many times the floor it is.
    #[must_use]
    pub fn judged(&self) -> String {
        match self.of_floor().filter(|_| self.verdict == Verdict::Measured) {
            Some(times) => format!("{} x the floor", Short(times)),
            None => self.verdict.words().to_owned(),
        }
    }

    /// The number with its unit, in few digits.
    #[must_use]
    pub fn number(&self) -> String {
        self.value
            .map_or_else(String::new, |value| format!("{} {}", Short(value), self.unit).trim().to_owned())
    }
}

/// Takes the figures of a check, as they are found: what was told before a check breaks off is known.
pub struct Report<'a> {
    small: bool,
    tell: &'a mut dyn FnMut(Figure),
}

impl<'a> Report<'a> {
    /// `small` says that times have no meaning.
    pub fn new(small: bool, tell: &'a mut dyn FnMut(Figure)) -> Report<'a> {
        Report { small, tell }
    }

    fn figure(
        &mut self,
        what: impl Into<String>,
        value: Option<f64>,
        unit: &'static str,
        bound: Option<Bound>,
        verdict: Verdict,
    ) {
        (self.tell)(Figure { what: what.into(), value, unit, bound, verdict, detail: false });
    }

    /// Words alone, such as a name.
    pub fn says(&mut self, what: impl Into<String>) {
        self.figure(what, None, "", None, Verdict::Measured);
    }

    /// Something that must be so.
    pub fn right(&mut self, what: impl Into<String>, so: bool) {
        self.figure(what, None, "", None, if so { Verdict::Right } else { Verdict::Wrong });
    }

    /// A number that must not be larger; NaN is.
    pub fn at_most(&mut self, what: impl Into<String>, value: f64, unit: &'static str, most: f64) {
        let verdict = if value <= most { Verdict::Right } else { Verdict::Wrong };
        self.figure(what, Some(value), unit, Some(Bound::AtMost(most)), verdict);
    }

    /// A number that must not be smaller; NaN is.
    pub fn at_least(&mut self, what: impl Into<String>, value: f64, unit: &'static str, least: f64) {
        let verdict = if value >= least { Verdict::Right } else { Verdict::Wrong };
        self.figure(what, Some(value), unit, Some(Bound::AtLeast(least)), verdict);
    }

    /// A number that follows from times; `floor` is what the hardware allows.
    pub fn timed(&mut self, what: impl Into<String>, value: f64, unit: &'static str, floor: Option<f64>) {
        let verdict = if self.small { Verdict::NoMeaning } else { Verdict::Measured };
        self.figure(what, Some(value), unit, floor.map(Bound::Floor), verdict);
    }

    /// A number without a right or wrong.
    pub fn number(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        self.figure(what, Some(value), unit, None, Verdict::Measured);
    }

    /// A number for the files alone.
    pub fn detail(&mut self, what: impl Into<String>, value: f64, unit: &'static str) {
        let verdict = Verdict::Measured;
        (self.tell)(Figure {
            what: what.into(),
            value: Some(value),
            unit,
            bound: None,
            verdict,
            detail: true,
        });
    }

    /// What cannot be known on this device; why stands in `what`.
    pub fn no_meaning(&mut self, what: impl Into<String>) {
        self.figure(what, None, "", None, Verdict::NoMeaning);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(small: bool, tell: impl Fn(&mut Report<'_>)) -> Figure {
        let mut all = Vec::new();
        tell(&mut Report::new(small, &mut |figure| all.push(figure)));
        all.pop().expect("a figure")
    }

    #[test]
    fn bounds_decide_and_numbers_that_are_none_are_wrong() {
        for (value, verdict) in [(1.0, Verdict::Right), (1.1, Verdict::Wrong), (f64::NAN, Verdict::Wrong)] {
            assert_eq!(
                told(false, |report| report.at_most("x", value, "s", 1.0)).verdict,
                verdict,
                "{value}"
            );
        }
        for (value, verdict) in [(1.0, Verdict::Right), (0.9, Verdict::Wrong), (f64::NAN, Verdict::Wrong)] {
            assert_eq!(
                told(false, |report| report.at_least("x", value, "s", 1.0)).verdict,
                verdict,
                "{value}"
            );
        }
    }

    #[test]
    fn times_of_small_shapes_have_no_meaning() {
        let of = |small| told(small, |report| report.timed("x", 2.0, "ms", Some(1.0)));
        assert_eq!((of(false).verdict, of(true).verdict), (Verdict::Measured, Verdict::NoMeaning));
        assert_eq!(of(false).number(), "2 ms");
        assert_eq!(
            (of(false).judged(), of(true).judged()),
            ("2 x the floor".into(), "no meaning here".into())
        );
    }

    #[test]
    fn numbers_are_short() {
        let cases =
            [(3.0, "3"), (4812.34, "4812"), (0.012345, "0.01235"), (1.5e-7, "1.50e-7"), (12.3456, "12.35")];
        for (value, text) in cases {
            assert_eq!(Short(value).to_string(), text);
        }
    }
}
