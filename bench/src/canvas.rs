//! A picture to draw lines and text on, and its PNG.

use font8x8::legacy::BASIC_LEGACY;

use crate::BenchError;

/// Red, green, blue.
pub(crate) type Colour = [u8; 3];

pub(crate) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

/// A rectangle, in pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Area {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

/// The round number, 1, 2 or 5 times a power of ten, that is not below `rough`: a distance between ticks.
pub(crate) fn round_step(rough: f64) -> f64 {
    let decade = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
    round.into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

/// Width and height of a letter.
pub(crate) const LETTER: usize = 8;

impl Canvas {
    /// A white one.
    pub(crate) fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, height, pixels: vec![[255; 3]; width * height] }
    }

    /// Colours a pixel, if there is one.
    fn dot(&mut self, x: i64, y: i64, colour: Colour) {
        if (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y) {
            self.pixels[y as usize * self.width + x as usize] = colour;
        }
    }

    /// A line `thick` pixels wide.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), thick: i64, colour: Colour) {
        let steps = (to.0 - from.0).abs().max((to.1 - from.1).abs()).ceil().max(1.0);
        for i in 0..=steps as usize {
            let along = i as f64 / steps;
            let x = (from.0 + along * (to.0 - from.0)).round() as i64;
            let y = (from.1 + along * (to.1 - from.1)).round() as i64;
            for dx in 0..thick {
                for dy in 0..thick {
                    self.dot(x + dx - thick / 2, y + dy - thick / 2, colour);
                }
            }
        }
    }

    /// A rectangle, filled, at least a pixel wide and high.
    pub(crate) fn fill(&mut self, area: Area, colour: Colour) {
        self.within(area, |_, _| colour);
    }

    /// Its border, a pixel wide.
    pub(crate) fn frame(&mut self, Area { left, top, width, height }: Area, colour: Colour) {
        let (right, bottom) = (left + width - 1.0, top + height - 1.0);
        for (from, to) in [
            ((left, top), (right, top)),
            ((left, bottom), (right, bottom)),
            ((left, top), (left, bottom)),
            ((right, top), (right, bottom)),
        ] {
            self.line(from, to, 1, colour);
        }
    }

    /// A rectangle with diagonal stripes.
    pub(crate) fn hatch(&mut self, area: Area, colour: Colour, stripe: Colour) {
        self.within(area, |x, y| if (x + y).rem_euclid(6) < 2 { stripe } else { colour });
    }

    fn within(&mut self, area: Area, colour: impl Fn(i64, i64) -> Colour) {
        let end = |from: f64, length: f64| ((from + length).round() as i64).max(from.round() as i64 + 1);
        for y in area.top.round() as i64..end(area.top, area.height) {
            for x in area.left.round() as i64..end(area.left, area.width) {
                self.dot(x, y, colour(x, y));
            }
        }
    }

    /// ASCII text from its upper left corner; other characters are left out.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), text: &str, colour: Colour) {
        for (i, glyph) in text.bytes().map(|byte| BASIC_LEGACY.get(usize::from(byte))).enumerate() {
            for (row, bits) in glyph.into_iter().flatten().enumerate() {
                for column in (0..LETTER).filter(|column| (bits >> column) & 1 == 1) {
                    self.dot(x as i64 + (i * LETTER + column) as i64, y as i64 + row as i64, colour);
                }
            }
        }
    }

    /// The picture as a PNG file.
    pub(crate) fn png(&self) -> Result<Vec<u8>, BenchError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(self.pixels.as_flattened())?;
        writer.finish()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_there_and_what_is_outside_does_no_harm() {
        let mut canvas = Canvas::new(40, 30);
        canvas.line((-10.0, 15.0), (60.0, 15.0), 1, [255, 0, 0]);
        canvas.text((30.0, 2.0), "MW", [0; 3]);
        assert!((0..40).all(|x| canvas.pixels[15 * 40 + x] == [255, 0, 0]));
        assert!(canvas.pixels[..10 * 40].contains(&[0; 3]));
        canvas.hatch(Area { left: -4.0, top: 20.0, width: 60.0, height: 40.0 }, [0, 255, 0], [0, 0, 255]);
        canvas.fill(Area { left: 5.0, top: 25.0, width: 0.2, height: 2.0 }, [9; 3]);
        assert!((20..30).all(|y| canvas.pixels[y * 40..][..40].contains(&[0, 0, 255])));
        assert_eq!(canvas.pixels.iter().filter(|pixel| **pixel == [9; 3]).count(), 2);
        let png = canvas.png().unwrap();
        assert_eq!(&png[1..4], b"PNG");
    }

    #[test]
    fn steps_between_ticks_are_round() {
        for (rough, round) in [(0.9, 1.0), (1.1, 2.0), (3.0, 5.0), (51.0, 100.0), (0.02, 0.02), (0.021, 0.05)]
        {
            assert!((round_step(rough) - round).abs() < 1e-12, "{rough}");
        }
    }
}
