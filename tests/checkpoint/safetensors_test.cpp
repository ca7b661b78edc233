#include "troika/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <string_view>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/checkpoint/safetensors_header.h"
#include "troika/compat/torch.h"

namespace troika::checkpoint {
namespace {

using testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + header + data;
}

// Expects the same dtype, shape and bits, also of NaNs.
void expect_same(const at::Tensor& a, const at::Tensor& b) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type());
  ASSERT_EQ(a.sizes(), b.sizes());
  const auto left = a.contiguous(), right = b.contiguous();
  const auto bytes = [](const at::Tensor& tensor) {
    return std::string_view(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
  };
  EXPECT_EQ(bytes(left), bytes(right));
}

TEST(Safetensors, ReadsBackEveryDtypeAndShape) {
  const TemporaryFolder folder;
  NamedTensors tensors;
  const std::pair<at::ScalarType, std::string> dtypes[] = {
      {at::kBool, "BOOL"},     {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"},
      {at::kBFloat16, "BF16"}, {at::kLong, "I64"},   {at::kInt, "I32"},   {at::kShort, "I16"},
      {at::kChar, "I8"},       {at::kByte, "U8"}};
  for (const auto& [dtype, name] : dtypes) {
    const auto some = at::arange(-7, 17).reshape({2, 3, 4}).to(dtype);
    tensors.emplace_back(name + ".scalar", some[0][0][0]);
    tensors.emplace_back(name + ".odd", some.flatten().slice(0, 0, 5));
    tensors.emplace_back(name + ".cube", some);
    tensors.emplace_back(name + ".transposed", some.transpose(0, 2));
    tensors.emplace_back(name + ".strided", some.flatten().slice(0, 1, 20, 3));
    tensors.emplace_back(name + ".expanded", some[0][0].expand({5, 4}));
    tensors.emplace_back(name + ".empty", at::empty({3, 0, 2}, dtype));
  }
  tensors.emplace_back("parameter", at::rand({3}).requires_grad_());
  tensors.emplace_back("special", at::tensor({NAN, -INFINITY, -0.0, 1e-320}, at::kDouble));
  tensors.emplace_back("name with \"quotes\", \\ and \xc3\xa9", at::zeros({}));
  const Metadata written{{"format", "pt"}, {"note", "two\nlines"}};
  save_safetensors(folder / "deep/er/x.safetensors", tensors, written);

  const std::string bytes = read_file(folder / "deep/er/x.safetensors");
  for (const auto& [dtype, name] : dtypes) {
    EXPECT_THAT(bytes, HasSubstr("\"" + name + ".cube\":{\"dtype\":\"" + name + "\""));
  }
  const auto loaded = load_safetensors(folder / "deep/er/x.safetensors");
  EXPECT_EQ(read_safetensors_metadata(folder / "deep/er/x.safetensors"), written);
  ASSERT_EQ(loaded.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(tensors[i].first);
    EXPECT_EQ(loaded[i].first, tensors[i].first);
    expect_same(loaded[i].second, tensors[i].second.detach());
    EXPECT_FALSE(loaded[i].second.requires_grad());
  }
}

TEST(Safetensors, WritesTheseBytes) {
  const TemporaryFolder folder;
  save_safetensors(folder / "x",
                   {{"b", at::tensor({1, 2}, at::kChar)}, {"a", at::scalar_tensor(1.5)}},
                   {{"k", "v"}});
  const std::string header =
      R"({"__metadata__":{"k":"v"},"b":{"dtype":"I8","shape":[2],"data_offsets":[4,6]},)"
      R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})";
  const std::string padding((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(folder / "x"),
            with_length(header + padding, std::string("\x00\x00\xc0\x3f\x01\x02", 6)));

  save_safetensors(folder / "none", {});
  EXPECT_EQ(read_file(folder / "none"), with_length("{}      ", ""));
  EXPECT_TRUE(load_safetensors(folder / "none").empty());
}

TEST(Safetensors, RefusesWhatItCannotSaveAndKeepsTheOldFile) {
  const TemporaryFolder folder;
  const auto path = folder / "x";
  save_safetensors(path, {{"a", at::ones({2})}});
  const std::string before = read_file(path);
  const std::string file = path.string();
  const auto one = at::ones({1});
  EXPECT_ERROR(save_safetensors(path, {{"a", one}, {"a", one}}), ErrorKind::usage,
               "[checkpoint] " + file + ": cannot save two tensors of one name; got `a`");
  EXPECT_ERROR(
      save_safetensors(path, {{"__metadata__", one}}), ErrorKind::usage,
      "[checkpoint] " + file + ": cannot save two tensors of one name; got `__metadata__`");
  EXPECT_ERROR(save_safetensors(path, {{"a", at::Tensor()}}), ErrorKind::usage,
               "[checkpoint] " + file + ": cannot save tensor `a`; got an undefined tensor");
  EXPECT_ERROR(save_safetensors(path, {{"a", one.to_sparse()}}), ErrorKind::usage,
               "[checkpoint] " + file +
                   ": cannot save tensor `a`; got a sparse tensor, expected a dense one");
  EXPECT_ERROR(save_safetensors(path, {{"a", one.to(at::kComplexFloat)}}), ErrorKind::usage,
               "[checkpoint] " + file +
                   ": cannot save tensor `a`; got dtype ComplexFloat, "
                   "expected a dtype of the safetensors format");
  EXPECT_THROW(save_safetensors(path, {{"\xff", one}}), Error);
  EXPECT_EQ(read_file(path), before);
}

struct Corruption {
  std::string header;
  std::string data;
  std::string message;  // after "[checkpoint] FILE: "
};

TEST(Safetensors, RefusesEveryCorruptHeader) {
  const std::string four(4, '\0'), eight(8, '\0');
  const auto a = [](const std::string& fields) { return R"({"a":{)" + fields + "}}"; };
  const std::string dtypes = "one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL";
  const Corruption table[] = {
      {"[]", "", "bad header; got [], expected a JSON object"},
      {R"({"a":1})", "", "bad entry of tensor `a`; got 1, expected a JSON object"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{}})", "",
       "`a` is in the header twice"},
      {a(R"("dtype":"U8","shape":[0],"dtype":"U8","data_offsets":[0,0])"), "",
       "`dtype` is in the entry of `a` twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", "", "`k` is in the `__metadata__` twice"},
      {R"({"__metadata__":{},"__metadata__":{}})", "", "`__metadata__` is in the header twice"},
      {R"({"__metadata__":{"k":{"l":"m"}}})", "",
       R"(bad `__metadata__` value of `k`; got {"l":"m"}, expected a string)"},
      {"[[[[[[[[[[]]]]]]]]]]", "", "the header is nested too deeply"},
      {R"({"__metadata__":[]})", "", "bad `__metadata__`; got [], expected a JSON object"},
      {R"({"__metadata__":{"k":1}})", "",
       "bad `__metadata__` value of `k`; got 1, expected a string"},
      {a(R"("shape":[1],"data_offsets":[0,4])"), four,
       "unknown dtype of tensor `a`; got null, expected " + dtypes},
      {a(R"("dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4])"), four,
       R"(unknown dtype of tensor `a`; got "F8_E4M3", expected )" + dtypes},
      {a(R"("dtype":"F32","data_offsets":[0,4])"), four,
       "bad shape of tensor `a`; got null, expected a list of non-negative integers"},
      {a(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), four,
       "bad shape of tensor `a`; got [-1], expected a list of non-negative integers"},
      {a(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), four,
       "bad shape of tensor `a`; got [1.0], expected a list of non-negative integers"},
      {a(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"), four,
       "bad shape of tensor `a`; got [9223372036854775808], expected a list of non-negative "
       "integers"},
      {a(R"("dtype":"F32","shape":[4611686018427387904,4,0],"data_offsets":[0,0])"), "",
       "data_offsets of tensor `a` do not match its shape; got 0 bytes, expected more than 2^63 "
       "for F32 [4611686018427387904, 4, 0]"},
      {a(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), four,
       "data_offsets of tensor `a` do not match its shape; got 4 bytes, expected 8 for F32 [2]"},
      {a(R"("dtype":"F32","shape":[1])"), four,
       "bad data_offsets of tensor `a`; got null, expected a list of non-negative integers"},
      {a(R"("dtype":"F32","shape":[1],"data_offsets":[4])"), four,
       "bad data_offsets of tensor `a`; got [4], expected a range in [0, 4]"},
      {a(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), four,
       "bad data_offsets of tensor `a`; got [4,0], expected a range in [0, 4]"},
      {a(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), four,
       "bad data_offsets of tensor `a`; got [4,8], expected a range in [0, 4]"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[2,6]}})",
       eight, "the bytes of tensor `b` overlap the tensor before it; got a start at 2, expected 4"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
       R"("b":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
       eight,
       "the bytes of tensor `b` leave a gap after the tensor before it; got a start at 6, "
       "expected 4"},
      {a(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), eight,
       "the tensors do not fill the file; got 8 bytes of data, expected 4"},
      {a(R"("dtype":"BOOL","shape":[4],"data_offsets":[0,4])"), std::string("\0\1\2\0", 4),
       "bad value in BOOL tensor `a`; got byte 0x02, expected 0 or 1"},
  };
  const TemporaryFolder folder;
  const auto path = folder / "x";
  for (const Corruption& row : table) {
    SCOPED_TRACE(row.header);
    write_file_atomically(path, with_length(row.header, row.data));
    EXPECT_ERROR(load_safetensors(path), ErrorKind::usage,
                 "[checkpoint] " + path.string() + ": " + row.message);
  }
  write_file_atomically(path, with_length(R"({"a)", ""));
  try {
    load_safetensors(path);
    ADD_FAILURE() << "cut JSON was accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(path.string() + ": the header is not valid JSON; got "));
  }
  std::string many = R"({"a":{"dtype":"U8","shape":[1)";
  for (int i = 0; i < 64; ++i) many += ",1";
  write_file_atomically(path, with_length(many + R"(],"data_offsets":[0,1]}})", "x"));
  EXPECT_ERROR(load_safetensors(path), ErrorKind::usage,
               "[checkpoint] " + path.string() +
                   ": tensor `a` has too many dimensions; got 65, expected at most 64");
}

TEST(Safetensors, RefusesImpossibleLengths) {
  const TemporaryFolder folder;
  const auto path = folder / "x";
  const std::string start =
      "[checkpoint] " + path.string() + ": not a safetensors file, or cut short; ";
  write_file_atomically(path, "1234567");
  EXPECT_ERROR(load_safetensors(path), ErrorKind::usage,
               start + "got 7 bytes, expected a header length of 8 bytes");
  write_file_atomically(path, std::string(8, '\xff') + "{}");
  EXPECT_ERROR(load_safetensors(path), ErrorKind::usage,
               start + "got a header of 18446744073709551615 bytes, expected at most 2");
  write_file_atomically(path, std::string("\x01\xe1\xf5\x05\0\0\0\0", 8));
  std::filesystem::resize_file(path, 200'000'000);
  EXPECT_ERROR(load_safetensors(path), ErrorKind::usage,
               start + "got a header of 100000001 bytes, expected at most 100000000");
  EXPECT_ERROR(
      load_safetensors(folder / "absent"), ErrorKind::usage,
      "[base] cannot open " + (folder / "absent").string() + "; got No such file or directory");
  EXPECT_THROW(load_safetensors(folder.path()), Error);
}

// If any step took quadratic time, this would take minutes.
TEST(Safetensors, TimeIsInProportionToTheTensors) {
  constexpr int kTensors = 200'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += (i == 0 ? "\"t" : ",\"t") + std::to_string(i) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  }
  const TemporaryFolder folder;
  write_file_atomically(folder / "x", with_length(header + "}", std::string(kTensors, '\1')));
  const SafetensorsFile file(folder / "x");
  ASSERT_EQ(file.header().entries.size(), size_t{kTensors});
  for (int i = 0; i < kTensors; ++i) {
    const auto* entry = file.find(fmt::format("t{}", i));
    ASSERT_TRUE(entry && entry->begin == i) << i;
  }
  EXPECT_EQ(file.find("t"), nullptr);
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return 1024 * usage.ru_maxrss;
}

// Headers of 60 MB with much more data than tensors need.
TEST(Safetensors, MemoryIsBounded) {
  constexpr size_t kBytes = 60'000'000;
  constexpr int64_t kMebibyte = 1 << 20;
  const auto repeated = [](const std::string& begin, const std::string& word) {
    std::string words = word;
    while (words.size() < kBytes) words += words;
    return begin + words;
  };
  struct Case {
    std::string begin, word, message;
  };
  for (const auto& [begin, word, message] :
       {Case{R"({"a":{"shape":[0)", ",0", "too many values in the entry of `a`"},
        Case{R"({"a":)", "[", "the header is nested too deeply"},
        Case{"[0", ",0", "too many values in the header"},
        Case{R"({"a":{"b":0)", R"(,"b":0)", "`b` is in the entry of `a` twice"}}) {
    const std::string text = repeated(begin, word);
    const int64_t before = peak_resident_bytes();
    try {
      parse_header(text, 0, "x");
      ADD_FAILURE() << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("x: " + message));
    }
    EXPECT_LT(peak_resident_bytes() - before, 4 * kMebibyte) << message;
  }
  std::string names = R"({"__metadata__":{"":"")";
  for (size_t i = 0; i < kMaxNames; ++i) names += ",\"" + std::to_string(i) + "\":\"\"";
  const int64_t before = peak_resident_bytes();
  EXPECT_ERROR(parse_header(names + "}}", 0, "x"), ErrorKind::usage,
               "[checkpoint] x: too many names in the header; expected at most 1048576");
  EXPECT_LT(peak_resident_bytes() - before, 512 * kMebibyte);
}

// A file with a 0-dim, an empty and two plain tensors, without padding that could absorb damage.
std::filesystem::path small_file(const TemporaryFolder& folder) {
  save_safetensors(folder / "small",
                   {{"w", at::arange(6, at::kFloat).reshape({2, 3})},
                    {"s", at::scalar_tensor(3, at::kLong)},
                    {"e", at::empty({0}, at::kHalf)},
                    {"m", at::tensor({1, 0}).to(at::kBool)}},
                   {{"step", "12"}});
  return folder / "small";
}

TEST(Safetensors, TruncatedAtAnyByteIsAnError) {
  const TemporaryFolder folder;
  const auto path = small_file(folder);
  ASSERT_EQ(load_safetensors(path).size(), 4u);
  for (auto size = std::filesystem::file_size(path); size-- > 0;) {
    std::filesystem::resize_file(path, size);
    EXPECT_THROW(load_safetensors(path), Error) << "cut to " << size << " bytes";
  }
}

TEST(Safetensors, FlippedBitsAreAnErrorOrAnotherFile) {
  const TemporaryFolder folder;
  const auto path = small_file(folder);
  const std::string whole = read_file(path);
  const File file(path, O_RDWR);
  int refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      const char flipped = static_cast<char>(whole[i] ^ (1 << bit));
      file.write_at(static_cast<int64_t>(i), {&flipped, 1});
      try {
        load_safetensors(path);
      } catch (const Error&) {
        ++refused;
      }
    }
    file.write_at(static_cast<int64_t>(i), whole.substr(i, 1));
  }
  // No reader can notice changes of names, metadata and values, or a dtype of the same size.
  EXPECT_GT(refused, 1000);
}

TEST(LoadInto, CopiesInPlaceAndConverts) {
  const auto weight = at::zeros({2}, at::kDouble).requires_grad_();
  const auto count = at::zeros({}, at::kLong);
  load_into({{"w", weight}, {"n", count}},
            {{"n", at::scalar_tensor(3)}, {"w", at::tensor({1.5f, 2.5f})}}, "x.safetensors");
  expect_same(weight.detach(), at::tensor({1.5, 2.5}, at::kDouble));
  EXPECT_EQ(count.item<int64_t>(), 3);
  EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
}

TEST(LoadInto, NamesEveryMisfitAndChangesNothing) {
  const auto a = at::zeros({2, 3});
  const NamedTensors model{{"a", a}, {"b", at::zeros({4})}, {"c", at::zeros({})}};
  const auto one = at::ones({});
  const std::string start = "[checkpoint] the tensors of x.safetensors do not fit the model; got ";
  EXPECT_ERROR(load_into(model, {{"a", at::ones({2, 3})}, {"b", at::ones({1, 4})}, {"c", one}},
                         "x.safetensors"),
               ErrorKind::usage, start + "`b` of shape [1, 4] instead of [4]");
  EXPECT_ERROR(load_into(model, {{"a", at::ones({2, 3})}, {"B", at::ones({4})}, {"c", one}},
                         "x.safetensors"),
               ErrorKind::usage, start + "missing `b`; unexpected `B`");
  EXPECT_ERROR(load_into(model, {{"p", one}, {"q", one}, {"r", one}, {"s", one}, {"t", one}},
                         "x.safetensors"),
               ErrorKind::usage,
               start + "missing `a`, `b`, `c`; unexpected `p`, `q`, `r` and 2 more");
  EXPECT_EQ(a.sum().item<float>(), 0) << "no tensor may change";
}

}  // namespace
}  // namespace troika::checkpoint
