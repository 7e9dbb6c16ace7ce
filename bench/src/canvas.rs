//! A picture of boxes, lines and words, as SVG.

use std::fmt::Write;

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour(pub(crate) u32);

impl Colour {
    pub(crate) const WHITE: Colour = Colour(0xff_ffff);
    pub(crate) const BLACK: Colour = Colour(0);
}

impl std::fmt::Display for Colour {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "#{:06x}", self.0)
    }
}

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// The width of a letter, at most.
pub(crate) const LETTER: usize = 8;
const FONT_SIZE: usize = 13;
/// From the top of a line of text to the line that its letters stand on.
const ASCENT: f64 = 8.0;

pub(crate) struct Canvas {
    svg: String,
}

impl Canvas {
    /// A white one.
    pub(crate) fn new(width: usize, height: usize) -> Canvas {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"monospace\" font-size=\"{FONT_SIZE}\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        );
        Canvas { svg }
    }

    /// An element, but for the brackets around it.
    fn element(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.svg, "<{element}/>");
    }

    /// A line `thick` pixels wide.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), thick: usize, colour: Colour) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.element(format_args!(
            r#"line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{thick}""#
        ));
    }

    fn rectangle(&mut self, Area { left, top, width, height }: Area, style: std::fmt::Arguments<'_>) {
        self.element(format_args!(
            r#"rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}" {style}"#
        ));
    }

    /// A rectangle, filled, at least a pixel wide and high.
    pub(crate) fn fill(&mut self, area: Area, colour: Colour) {
        let area = Area { width: area.width.max(1.0), height: area.height.max(1.0), ..area };
        self.rectangle(area, format_args!(r#"fill="{colour}""#));
    }

    /// Its border, a pixel wide.
    pub(crate) fn frame(&mut self, area: Area, colour: Colour) {
        self.rectangle(area, format_args!(r#"fill="none" stroke="{colour}""#));
    }

    /// A rectangle with diagonal stripes.
    pub(crate) fn hatch(&mut self, area: Area, colour: Colour, stripe: Colour) {
        self.fill(area, colour);
        let Colour(id) = stripe;
        let pattern = format!(r#"<pattern id="stripes-{id:06x}""#);
        if !self.svg.contains(&pattern) {
            let _ = writeln!(
                self.svg,
                r#"{pattern} width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="1" height="4" fill="{stripe}"/></pattern>"#
            );
        }
        self.rectangle(area, format_args!(r#"fill="url(#stripes-{id:06x})""#));
    }

    /// Text from its upper left corner.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), text: &str, colour: Colour) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let y = y + ASCENT;
        let _ = writeln!(
            self.svg,
            r#"<text x="{x:.1}" y="{y:.1}" fill="{colour}" xml:space="preserve">{text}</text>"#
        );
    }

    /// The picture's file.
    pub(crate) fn svg(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

/// The round number, 1, 2 or 5 times a power of ten, that is not below `rough`: a distance between ticks.
pub(crate) fn round_step(rough: f64) -> f64 {
    let decade = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
    round.into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_between_ticks_are_round() {
        for (rough, round) in [(0.9, 1.0), (1.1, 2.0), (3.0, 5.0), (51.0, 100.0), (0.02, 0.02), (0.021, 0.05)]
        {
            assert!((round_step(rough) - round).abs() < 1e-12, "{rough}");
        }
    }

    #[test]
    fn stripes_of_a_colour_are_defined_once() {
        let mut canvas = Canvas::new(40, 30);
        let area = Area { left: 1.0, top: 2.0, width: 10.0, height: 5.0 };
        (0..3).for_each(|_| canvas.hatch(area, Colour::WHITE, Colour(0xbe)));
        let svg = canvas.svg();
        let count = |words| svg.matches(words).count();
        assert_eq!((count("<pattern id=\"stripes-0000be\""), count("url(#stripes-0000be)")), (1, 3));
    }

    #[test]
    fn words_are_escaped() {
        let mut canvas = Canvas::new(40, 30);
        canvas.text((1.0, 2.0), "a<b & c", Colour::BLACK);
        assert!(canvas.svg().contains(">a&lt;b &amp; c</text>\n</svg>"));
    }
}
