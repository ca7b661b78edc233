// Counts the data members of classes.
#include <gmock/gmock.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "troika/base/file.h"
#include "troika/base/text.h"

namespace troika {
namespace {

namespace fs = std::filesystem;

// A class or struct, and what it declares itself.
struct ClassFound {
  std::string name;
  bool is_struct = false;
  int members = 0;    // data members that are not static
  int functions = 0;  // neither defaulted nor deleted
};

// Replaces comments, literals and preprocessor lines by spaces.
std::string code_of(const std::string& text) {
  std::string code;
  for (size_t at = 0; at < text.size();) {
    const auto rest = std::string_view(text).substr(at);
    const auto line_end = std::min(text.find('\n', at), text.size());
    const bool in_number = at > 0 && std::isxdigit(static_cast<unsigned char>(text[at - 1])) != 0;
    size_t end = at;
    if (rest.starts_with("//") || (rest[0] == '#' && (at == 0 || text[at - 1] == '\n'))) {
      end = line_end;
      while (end < text.size() && text[end - 1] == '\\') end = text.find('\n', end + 1);
    } else if (rest.starts_with("/*")) {
      end = text.find("*/", at) + 2;
    } else if (rest.starts_with("R\"")) {
      const auto delimiter = rest.substr(2, rest.find('(') - 2);
      const auto closing = ")" + std::string(delimiter) + "\"";
      end = text.find(closing, at) + closing.size();
    } else if (rest[0] == '"' || (rest[0] == '\'' && !in_number)) {
      end = at + 1;
      while (text[end] != rest[0]) end += text[end] == '\\' ? 2 : 1;
      ++end;
    }
    if (end == at) {
      code += text[at++];
    } else {
      code += ' ';
      at = end;
    }
  }
  return code;
}

enum class Declaration { none, data, function, other };

// Returns a declaration without its first specifier alignas(...).
std::string after_alignas(const std::string& text) {
  size_t at = text.find('(');
  int depth = 0;
  do {
    if (text[at] == '(') ++depth;
    if (text[at] == ')') --depth;
    ++at;
  } while (depth > 0);
  return std::string(trim(text.substr(at)));
}

// Returns what a declaration in a class declares, and how many. `text` ends before its semicolon or
// body, and lacks the contents of braces.
std::pair<Declaration, int> declaration_of(const std::string& text) {
  static const std::regex other(
      R"(^(using|typedef|friend|static|template|enum|class|struct|union|static_assert)\b)");
  static const std::regex an_operator(R"(\boperator\b)");
  static const std::regex pointer(R"(^\(\s*(\w+::)*\*)");  // to a function or a member
  // The rest of a constructor's initializers begins with a comma.
  if (text.empty() || text[0] == ',') return {Declaration::none, 0};
  if (text.starts_with("alignas")) return declaration_of(after_alignas(text));
  if (std::regex_search(text, other)) return {Declaration::other, 0};
  if (std::regex_search(text, an_operator)) return {Declaration::function, 1};
  int depth = 0, count = 1;
  bool in_initializer = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(' && depth == 0 && !in_initializer) {
      const auto rest = text.substr(i);
      if (std::regex_search(rest, pointer)) return {Declaration::data, 1};
      return {Declaration::function, 1};
    }
    if (c == '(' || c == '[' || (c == '<' && !in_initializer)) ++depth;
    if (c == ')' || c == ']' || (c == '>' && !in_initializer)) --depth;
    if (depth != 0) continue;
    if (c == '=') in_initializer = true;
    if (c == ',') ++count, in_initializer = false;
  }
  return {Declaration::data, count};
}

// Reads the classes of a source file. Relies on the house's style: one clang-format, no macros that
// declare members.
class ClassReader {
 public:
  explicit ClassReader(const std::string& text) : text_(code_of(text)) {}

  std::vector<ClassFound> read() {
    while (at_ < text_.size()) read_scope(nullptr);
    return std::move(found_);
  }

 private:
  // Reads to the end of a scope. If `own` is not null, the scope is the body of this class.
  void read_scope(ClassFound* own) {
    std::string head;
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '}') return;
      if (c == '{') {
        enter(own, head);
      } else if (c == ';') {
        add(own, head);
        head.clear();
      } else {
        head += c;
      }
    }
  }

  // Reads from after an opening brace to after the closing brace. `head` is the declaration before
  // the opening brace.
  void enter(ClassFound* own, std::string& head) {
    static const std::regex class_head(
        R"(^(template\s*<[^{]*>\s*)?(class|struct|union)\s+((\[\[\w+\]\]|alignas\s*\([^)]*\))\s*)*([\w:]*)[^()]*$)");
    const auto declaration = without_access(head);
    std::smatch match;
    if (std::regex_search(declaration, match, class_head)) {
      ClassFound inner{.name = match[5], .is_struct = match[2] != "class"};
      read_scope(&inner);
      found_.push_back(inner);
      head.clear();
    } else if (!own) {
      read_scope(nullptr);
      head.clear();
    } else {
      skip_scope();
      const auto next = text_.find_first_not_of(" \n", at_);
      const bool in_parameters = std::ranges::count(head, '(') > std::ranges::count(head, ')');
      const bool is_initializer = declaration_of(declaration).first == Declaration::data &&
                                  (text_[next] == ';' || text_[next] == ',');
      if (in_parameters || is_initializer) return;
      add(own, head);
      head.clear();
    }
  }

  void skip_scope() {
    for (int depth = 1; depth > 0; ++at_) {
      if (text_[at_] == '{') ++depth;
      if (text_[at_] == '}') --depth;
    }
  }

  static std::string without_access(const std::string& head) {
    static const std::regex access(R"(^\s*((public|private|protected)\s*:\s*)*)");
    return std::string(trim(std::regex_replace(head, access, "")));
  }

  static void add(ClassFound* own, const std::string& head) {
    static const std::regex defaulted(R"(=\s*(default|delete)$)");
    if (!own) return;
    const auto text = without_access(head);
    const auto [declaration, count] = declaration_of(text);
    if (declaration == Declaration::data) own->members += count;
    if (declaration == Declaration::function && !std::regex_search(text, defaulted)) {
      ++own->functions;
    }
  }

  const std::string text_;
  size_t at_ = 0;
  std::vector<ClassFound> found_;
};

TEST(House, DataMembersAreCounted) {
  const auto found = ClassReader(R"(
    // class Commented { int a; };
    template <typename T, int N = 3>
    class [[nodiscard]] Box final : public Base<T> {
     public:
      enum class Phase { first, second };
      Box() : a_(1), b_{2} { const char* text = "int x; }"; }
      ~Box() = default;
      void call(const std::map<int, int>& given = {}, int other = 1'000) const;
      int a() const { return a_; }
     private:
      struct Inner { int one, two; std::string three = {}; bool operator==(const Inner&) const = default; };
      static constexpr int kMost = 3;
      using Text = std::string;
      int a_ = 1 << 3, b_{2};
      std::function<void(int, int)> call_ = [](int, int) {};
      void (*function_)(int, int) = nullptr;
      std::array<std::pair<int, int>, 4> pairs_;
      const std::map<std::string, int>& map_;
      Phase phase_ = Phase::first;
      alignas(64) std::atomic<int> apart_ = 0;
      alignas(std::max(alignof(int), alignof(long))) char bytes_[64];
      alignas(64) int aligned() const { return apart_; }
    };
    void function() { struct Local { int x; int y() { return x; } }; }
  )")
                         .read();
  std::map<std::string, std::pair<int, int>> counted;
  for (const auto& one : found) counted[one.name] = {one.members, one.functions};
  EXPECT_THAT(counted, testing::UnorderedElementsAre(testing::Pair("Box", testing::Pair(9, 4)),
                                                     testing::Pair("Inner", testing::Pair(3, 0)),
                                                     testing::Pair("Local", testing::Pair(1, 1))));
}

// A class with more data members does more than one job. Structs without functions are plain data.
TEST(House, ClassesHaveFewDataMembers) {
  constexpr int kMost = 15;
  int checked = 0;
  const fs::path source = TROIKA_SOURCE_DIR;
  for (const auto& entry : fs::recursive_directory_iterator(source / "troika")) {
    const auto& file = entry.path();
    if (file.extension() != ".h" && file.extension() != ".cpp") continue;
    for (const auto& one : ClassReader(read_file(file)).read()) {
      if (one.is_struct && one.functions == 0) continue;
      ++checked;
      EXPECT_LE(one.members, kMost) << one.name << " in " << file;
    }
  }
  EXPECT_GT(checked, 300);
}

}  // namespace
}  // namespace troika
