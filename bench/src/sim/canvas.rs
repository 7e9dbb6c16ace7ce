//! A picture to draw lines and text on, and its PNG.

use font8x8::legacy::BASIC_LEGACY;

use crate::BenchError;

/// Red, green, blue.
pub(super) type Colour = [u8; 3];

pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<Colour>,
}

/// Width and height of a letter.
pub(super) const LETTER: usize = 8;

impl Canvas {
    /// A white one.
    pub(super) fn new(width: usize, height: usize) -> Canvas {
        Canvas { width, height, pixels: vec![[255; 3]; width * height] }
    }

    /// Colours a pixel, if there is one.
    fn dot(&mut self, x: i64, y: i64, colour: Colour) {
        if (0..self.width as i64).contains(&x) && (0..self.height as i64).contains(&y) {
            self.pixels[y as usize * self.width + x as usize] = colour;
        }
    }

    /// A line `thick` pixels wide.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), thick: i64, colour: Colour) {
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

    /// ASCII text from its upper left corner; other characters are left out.
    pub(super) fn text(&mut self, (x, y): (f64, f64), text: &str, colour: Colour) {
        for (i, glyph) in text.bytes().map(|byte| BASIC_LEGACY.get(usize::from(byte))).enumerate() {
            for (row, bits) in glyph.into_iter().flatten().enumerate() {
                for column in (0..LETTER).filter(|column| (bits >> column) & 1 == 1) {
                    self.dot(x as i64 + (i * LETTER + column) as i64, y as i64 + row as i64, colour);
                }
            }
        }
    }

    /// The picture as a PNG file.
    pub(super) fn png(&self) -> Result<Vec<u8>, BenchError> {
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
        let png = canvas.png().unwrap();
        assert_eq!(&png[1..4], b"PNG");
    }
}
