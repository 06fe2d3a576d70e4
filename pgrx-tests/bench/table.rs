//! Prints figures in columns.

/// A column: its title, its width, and the decimals of its figures.
pub type Column = (&'static str, usize, usize);

/// A table: a column of names with this width, and columns of figures.
pub struct Table {
    names: usize,
    columns: Vec<Column>,
}

impl Table {
    /// Prints the titles.
    pub fn begin(names: usize, columns: &[Column]) -> Self {
        print!("{:names$}", "");
        columns.iter().for_each(|(title, width, _)| print!("{title:>width$}"));
        println!();
        Self { names, columns: columns.to_vec() }
    }

    /// Prints a line. A missing figure, a NaN, stays blank.
    pub fn row(&self, name: &str, figures: &[f64]) {
        print!("{:1$}", format!("  {name}"), self.names);
        for (figure, &(_, width, digits)) in figures.iter().zip(&self.columns) {
            let figure = if figure.is_nan() { String::new() } else { format!("{figure:.digits$}") };
            print!("{figure:>width$}");
        }
        println!();
    }
}
