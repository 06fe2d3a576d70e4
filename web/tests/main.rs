//! The dashboard as a program, against servers of the tests' own.
//!
//! `place` starts it, `http` speaks with it byte by byte. Without a browser: `access` (who gets in, what is refused), `roles`,
//! `pages` (what is shown), `verbs` (what is done).

mod access;
mod http;
mod pages;
mod place;
mod roles;
mod verbs;
