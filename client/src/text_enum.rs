//! Enums whose values the extension writes as words. A word this library does not know is an
//! error that names it, never a guess (G11).

use std::{error, fmt};

/// A word that is none of an enum's values, returned by its [`FromStr`](std::str::FromStr).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWord(pub(crate) String);

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown word \"{}\"", self.0.escape_debug())
    }
}

impl error::Error for UnknownWord {}

/// Declares a field-less enum together with the words of its values: `as_str`, `Display` and
/// `FromStr` come from one list, so that reading and writing cannot drift apart.
macro_rules! text_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// The word that the extension uses for this value.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> ::std::result::Result<Self, Self::Err> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::UnknownWord(word.to_owned())),
                }
            }
        }
    };
}
pub(crate) use text_enum;
