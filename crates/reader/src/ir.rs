//! The form that code of every language is brought into before it is followed: what it assigns,
//! calls, imports and defines. The rest of a language does not matter here.

use std::rc::Rc;

#[derive(Debug, Clone)]
pub(crate) enum Expr {
    Text(String),
    Name(String),
    Attribute(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>),
    /// The part of a list from here to there.
    Slice(Box<Expr>, usize, Option<usize>),
    /// A list whose parts are arguments, or elements, of their own.
    Spread(Box<Expr>),
    Call(Box<Call>),
    /// Texts one after the other: an f-string, a template, `+`.
    Join(Vec<Expr>),
    /// `/`, which joins paths, and `%`, which formats.
    Slash(Box<Expr>, Box<Expr>),
    Percent(Box<Expr>, Box<Expr>),
    Choice(Vec<Expr>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Function(Rc<Function>),
    /// A comprehension: its value for each of the values of its source.
    Each {
        target: Box<Expr>,
        over: Box<Expr>,
        value: Box<Expr>,
    },
    Assign(Box<Expr>, Box<Expr>),
    /// Not known, with what is evaluated on the way.
    Other(Vec<Expr>),
}

#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) callee: Expr,
    pub(crate) arguments: Vec<Expr>,
    pub(crate) named: Vec<(String, Expr)>,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) body: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) default: Option<Expr>,
}

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) name: String,
    pub(crate) bases: Vec<Expr>,
    pub(crate) body: Vec<Statement>,
}

#[derive(Debug)]
pub(crate) enum Statement {
    Assign(Vec<Expr>, Expr),
    Augment(Expr, Expr),
    Evaluate(Expr),
    Define(Rc<Function>),
    Class(Rc<Class>),
    /// `import a.b as c`: the module, and the name that it gets.
    Import(String, Option<String>),
    /// `from a import b as c`: the module, and the names in it with those that they get.
    ImportFrom(String, Vec<(String, String)>),
    /// Blocks of which any may run.
    Branch(Vec<Vec<Statement>>),
    /// What runs only where the file is the program itself, and is not imported.
    Main(Vec<Statement>),
    /// A block that runs for each value.
    Loop(Option<(Expr, Expr)>, Vec<Statement>),
    With(Vec<(Expr, Option<Expr>)>, Vec<Statement>),
    Return(Expr),
}
