#include "troika/observe/report/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "troika/observe/report/style.h"

namespace troika::observe::report {

namespace {

// The number of numeric columns that fit into the width of a phone.
constexpr size_t kNarrowColumns = 3;

}  // namespace

std::string escape(const std::string& text) {
  std::string html;
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string number(double value) {
  if (!std::isfinite(value)) return "–";
  const bool is_long = std::abs(value) >= 1e4 && std::abs(value) < 1e9;
  return is_long ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "–";
}

std::string spaced(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', ' ');
  return text;
}

std::string page(const std::string& title, const std::string& content) {
  const auto name = escape(title);
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         name + " – Troika</title>\n<style>\n" + style_sheet() + "</style>\n</head>\n<body>\n<h1>" +
         name + "</h1>\n" + content + "</body>\n</html>\n";
}

std::string paragraph(const std::string& text) {
  return "<p>" + escape(text) + "</p>\n";
}

std::string section(const std::string& title, const std::string& content) {
  return "<section>\n<h2>" + escape(title) + "</h2>\n" + content + "</section>\n";
}

std::string table(const std::string& caption, const Cells& header, const std::vector<Cells>& rows) {
  const bool is_wide = header.size() > kNarrowColumns;
  std::string html = fmt::format("<div class=\"wide\"><table{}><caption>{}</caption>\n<tr>",
                                 is_wide ? " class=\"stacks\"" : "", escape(caption));
  for (const auto& cell : header) html += "<th scope=\"col\">" + escape(cell) + "</th>";
  html += "</tr>\n";
  for (const auto& row : rows) {
    html += "<tr><th scope=\"row\">" + escape(row.front()) + "</th>";
    for (size_t c = 1; c < row.size(); ++c) {
      const auto name = is_wide ? " data-name=\"" + escape(header.at(c)) + "\"" : "";
      html += "<td" + name + ">" + escape(row[c]) + "</td>";
    }
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string folded(const std::string& title, const std::string& content) {
  return "<details><summary>" + escape(title) + "</summary>\n" + content + "</details>\n";
}

}  // namespace troika::observe::report
