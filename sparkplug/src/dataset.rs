//! DataSet: a table with named, typed columns.

use std::sync::Arc;

use crate::datatype::DataType;
use crate::value::Value;

/// A table. Each row has as many cells as there are columns; a cell without a value is [`Value::Null`].
// tck-id-payloads-dataset-column-num-headers, tck-id-payloads-dataset-types-num
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DataSet {
    /// Column names.
    pub columns: Vec<Arc<str>>,
    /// Column types, basic ones only; as many as columns.
    pub types: Vec<DataType>,
    /// Cells, row by row.
    pub rows: Vec<Vec<Value>>,
}

/// What is wrong with a DataSet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataSetError {
    /// `num_of_columns`, `columns` and `types` disagree.
    #[error("{stated:?} columns stated, {columns} named, {types} typed")]
    Columns {
        /// `num_of_columns`, if present.
        stated: Option<u64>,
        /// Names.
        columns: usize,
        /// Types.
        types: usize,
    },
    /// A column has a type that columns cannot have.
    #[error("column {column} has type {code}, columns are of basic types only")]
    Type {
        /// Index of the column.
        column: usize,
        /// Its type code.
        code: u32,
    },
    /// A row has the wrong number of cells.
    #[error("row {row} has {cells} cells for {columns} columns")]
    Row {
        /// Index of the row.
        row: usize,
        /// Cells it has.
        cells: usize,
        /// Columns there are.
        columns: usize,
    },
    /// A cell does not fit the type of its column.
    #[error("row {row}, column {column}: the cell does not fit the column's type")]
    Cell {
        /// Index of the row.
        row: usize,
        /// Index of the column.
        column: usize,
    },
}
