//! Plain tables: columns as wide as their widest cell, names to the left, numbers to the right.

use std::fmt;

/// A table whose first column is text and whose others are numbers.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<const N: usize>(header: [&str; N]) -> Self {
        Table {
            header: header.map(str::to_owned).to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.to_vec());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || std::iter::once(&self.header).chain(&self.rows);
        let columns = lines().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            lines()
                .filter_map(|line| line.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for line in lines() {
            let mut text = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                if column == 0 {
                    text.push_str(&format!("{cell:<width$}"));
                } else {
                    text.push_str(&format!("  {cell:>width$}"));
                }
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

/// A number with so many digits after the point.
pub(crate) fn number(value: f64, digits: usize) -> String {
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["arm", "median"]);
        table.row(["bare".into(), "0.9".into()]);
        table.row(["ironcage".into(), "1234.5".into()]);
        let expected = "arm       median\nbare         0.9\nironcage  1234.5\n";
        assert_eq!(table.to_string(), expected);
    }

    #[test]
    fn width_counts_characters_and_not_bytes() {
        let mut table = Table::new(["a", "b"]);
        table.row(["µs".into(), "é".into()]);
        table.row(["xy".into(), "1".into()]);
        assert_eq!(table.to_string(), "a   b\nµs  é\nxy  1\n");
    }

    #[test]
    fn numbers_are_rounded_to_their_digits() {
        assert_eq!(number(1.006, 2), "1.01");
        assert_eq!(number(2.0, 0), "2");
    }
}
