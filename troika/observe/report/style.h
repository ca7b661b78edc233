// The style sheet of the page.
#pragma once

#include <array>
#include <string>

namespace troika::observe::report {

// Okabe and Ito's colours (Color Universal Design, 2008), but black and yellow: apart for colour
// blind eyes, on white and on black.
inline constexpr std::array<const char*, 6> kColours{"#e69f00", "#56b4e9", "#0072b2",
                                                     "#d55e00", "#009e73", "#999999"};

// Light or dark as the reader's system is. Classes cN fill, lN draw and kN lie behind in the N-th
// colour.
std::string style_sheet();

}  // namespace troika::observe::report
