// The style sheet of the page.
#pragma once

#include <string>

namespace troika::train::report {

// Light or dark as the reader's system is.
std::string style_sheet();

}  // namespace troika::train::report
