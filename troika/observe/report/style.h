// The style sheet of the page.
#pragma once

#include <array>
#include <string>

namespace troika::observe::report {

// Okabe and Ito's colours (Color Universal Design, 2008) without black and yellow. Colour-blind
// readers can tell them apart, on white and on black.
inline constexpr std::array<const char*, 6> kColours{"#e69f00", "#56b4e9", "#0072b2",
                                                     "#d55e00", "#009e73", "#999999"};

// Follows the reader's system in light or dark mode. Class cN fills with, lN draws in, and kN has
// as its background the N-th colour.
std::string style_sheet();

}  // namespace troika::observe::report
