//! Stop strings: text flows through, text that may yet become a stop string is held back, text after one never comes out.

/// Watches one sequence's text for any of several stop strings.
///
/// What comes out does not depend on how the text was cut into pieces: the stop string that is complete first wins, and of those
/// complete at the same place the longest.
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
    /// Whether the stop string itself comes out too.
    shown: bool,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are dropped, for they would stop everything. The stop string that is found comes out
    /// if it is `shown`.
    pub fn new(stops: Vec<String>, shown: bool) -> StopMatcher {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        StopMatcher { stops, held: String::new(), stopped: false, shown }
    }

    /// Takes the next piece of text and returns what may be shown now.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        if let Some((end, start)) = self.first_match() {
            self.stopped = true;
            self.held.truncate(if self.shown { end } else { start });
            return std::mem::take(&mut self.held);
        }
        let keep = self.possible_beginning();
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Whether a stop string was seen; nothing comes out any more.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The text has ended: what was held back belongs to it after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop string that is complete first ends and begins.
    fn first_match(&self) -> Option<(usize, usize)> {
        let ends = self.stops.iter().filter_map(|stop| self.held.find(stop).map(|at| (at + stop.len(), at)));
        ends.min()
    }

    /// Length of the longest end of the held text that a stop string begins with.
    fn possible_beginning(&self) -> usize {
        let longest = |stop: &String| {
            let most = self.held.len().min(stop.len().saturating_sub(1));
            (1..=most)
                .rev()
                .find(|&n| stop.as_bytes().get(..n) == self.held.as_bytes().get(self.held.len() - n..))
                .unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What comes out of a matcher fed with `pieces`, and whether it stopped.
    fn run(stops: &[String], pieces: &[String]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.to_vec(), false);
        let mut out: String = pieces.iter().map(|piece| matcher.push(piece)).collect();
        out.push_str(&matcher.finish());
        (out, matcher.stopped())
    }

    /// The definition, by brute force: cut at the stop string that is complete first, the longest of those.
    fn definition(stops: &[String], text: &str) -> (String, bool) {
        for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
            let ended = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
            if let Some(longest) = ended.map(String::len).max() {
                return (text[..end - longest].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn a_stop_string_across_pieces_is_found_and_nothing_of_it_comes_out() {
        let mut matcher = StopMatcher::new(vec!["\n\n".into(), "END".into()], false);
        assert_eq!(matcher.push("fn main\n"), "fn main");
        assert_eq!(matcher.push("E"), "\n");
        assert_eq!(matcher.push("N"), "");
        assert_eq!(matcher.push("D and more"), "");
        assert!(matcher.stopped());
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn held_text_comes_out_when_it_becomes_none_or_the_text_ends() {
        let mut matcher = StopMatcher::new(vec!["###".into()], false);
        assert_eq!(matcher.push("a##"), "a");
        assert_eq!(matcher.push("b#"), "##b");
        assert_eq!(matcher.finish(), "#");
        assert!(!matcher.stopped());
    }

    #[test]
    fn a_stop_string_that_is_shown_comes_out_and_nothing_after_it() {
        let mut matcher = StopMatcher::new(vec!["END".into()], true);
        assert_eq!(matcher.push("the E"), "the ");
        assert_eq!(matcher.push("NDless"), "END");
        assert!(matcher.stopped());
        assert_eq!(matcher.finish(), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn cutting_the_text_into_pieces_changes_nothing(
            stops in prop::collection::vec("[abé]{1,4}", 1..4),
            pieces in prop::collection::vec("[abcé]{0,5}", 0..12),
        ) {
            let whole = pieces.concat();
            let wanted = definition(&stops, &whole);
            prop_assert_eq!(run(&stops, &pieces), wanted.clone());
            let characters: Vec<String> = whole.chars().map(String::from).collect();
            prop_assert_eq!(run(&stops, &characters), wanted.clone());
            prop_assert_eq!(run(&stops, &[whole]), wanted);
        }
    }
}
