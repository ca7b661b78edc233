// Builds parts of the page as HTML. Escapes all text arguments.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::observe::report {

using Cells = std::vector<std::string>;

// Escapes `text` for HTML, including attribute values in quotes.
std::string escape(const std::string& text);

// Formats four digits, or all integer digits of numbers up to 1e9; a dash for non-finite values.
std::string number(double value);
// Formats a fraction as a percentage; `share` is 1 for 100 %.
std::string percent(double share);

// Replaces underscores by spaces.
std::string spaced(std::string_view name);

// Returns a whole page. `content` is HTML.
std::string page(const std::string& title, const std::string& content);
std::string paragraph(const std::string& text);
// `content` is HTML.
std::string section(const std::string& title, const std::string& content);
// A table of numbers. The first cell of a row is its heading. In a narrow window, the cells of a
// row with many columns are stacked, each beside its column's name.
std::string table(const std::string& caption, const Cells& header, const std::vector<Cells>& rows);
// A section that opens on a click. `content` is HTML.
std::string folded(const std::string& title, const std::string& content);

}  // namespace troika::observe::report
