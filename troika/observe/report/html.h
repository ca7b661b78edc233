// Parts of the page, as HTML. All texts that they take are escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troika::observe::report {

using Cells = std::vector<std::string>;

// `text` as it stands in HTML, also within an attribute's quotes.
std::string escape(const std::string& text);

// Four digits, or all before the point of longer numbers up to 1e9; a dash for what is not finite.
std::string number(double value);
// `share` is part of 1.
std::string percent(double share);

// With spaces in place of underscores.
std::string spaced(std::string_view name);

std::string paragraph(const std::string& text);
// `content` is HTML.
std::string section(const std::string& title, const std::string& content);
// A table of numbers. The first cell of a row is its heading. In a narrow window the cells of a row
// of many stand below each other, each beside the name of its column.
std::string table(const std::string& caption, const Cells& header, const std::vector<Cells>& rows);
// `content`, HTML, which is shown on a click.
std::string folded(const std::string& title, const std::string& content);

}  // namespace troika::observe::report
