#include "core/safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace twinstream {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;  // the format's own limit

// Bytes per element; 0: a dtype that this program does not read.
int64_t ElementBytes(absl::string_view dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F64" || dtype == "I64") return 8;
  if (dtype == "BF16") return 2;
  return 0;
}

// Parses without exceptions; a name given twice in one object is an error, which JSON alone allows.
absl::StatusOr<Json> ParseJson(absl::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> names;  // of the open objects, by depth
  std::string repeated;
  const auto see = [&](int depth, Json::parse_event_t event, Json& value) {
    const size_t level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      names.resize(std::max(names.size(), level + 2));
      names[level + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      const std::string& name = value.get_ref<const std::string&>();
      if (!names[level].insert(name).second && repeated.empty()) repeated = name;
    }
    return true;
  };
  Json json = Json::parse(text.begin(), text.end(), see, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
  }
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": \"", repeated, "\" is there more than once"));
  }
  return json;
}

// Non-negative integers that fit, or false.
bool ReadIntegers(const Json& object, const char* key, std::vector<int64_t>& numbers) {
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return false;
  for (const Json& number : *list) {
    if (!number.is_number_unsigned()) return false;
    const uint64_t value = *number.get_ptr<const Json::number_unsigned_t*>();
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    numbers.push_back(static_cast<int64_t>(value));
  }
  return true;
}

// shape's bytes; -1 if they do not fit into 63 bits.
int64_t BytesOf(absl::Span<const int64_t> shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return -1;
  }
  return bytes;
}

// One entry of the header; `data` is the file after the header. `what` names file and tensor.
absl::StatusOr<StoredArray> ReadEntry(const std::string& what, const std::string& name,
                                      const Json& entry, absl::Span<const std::byte> data) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(what, " ", why...));
  };
  if (!entry.is_object()) return refuse("is not described by a JSON object");
  const auto dtype = entry.find("dtype");
  if (dtype == entry.end() || !dtype->is_string()) return refuse("has no dtype");
  StoredArray array;
  array.name = name;
  array.dtype = dtype->get_ref<const std::string&>();
  if (ElementBytes(array.dtype) == 0) {
    return refuse("has dtype ", array.dtype, "; F32, BF16, F64, I32 and I64 are known");
  }
  std::vector<int64_t> extents, offsets;
  if (!ReadIntegers(entry, "shape", extents)) {
    return refuse("has no shape of non-negative integers");
  }
  if (extents.size() > 4) return refuse("has ", extents.size(), " dimensions; 4 are supported");
  if (!ReadIntegers(entry, "data_offsets", offsets) || offsets.size() != 2) {
    return refuse("has no data_offsets of two non-negative integers");
  }
  array.shape = Shape(extents);
  const int64_t bytes = BytesOf(extents, ElementBytes(array.dtype));
  if (offsets[0] > offsets[1] || offsets[1] - offsets[0] != bytes) {
    return refuse("has data_offsets [", offsets[0], ", ", offsets[1], "], but ", array.dtype, " ",
                  array.shape.ToString(), " takes another number of bytes");
  }
  if (static_cast<uint64_t>(offsets[1]) > data.size()) {
    return refuse("ends at byte ", offsets[1], " of the data, but the file holds ", data.size(),
                  ": it is truncated or damaged");
  }
  array.bytes = data.subspan(static_cast<size_t>(offsets[0]), static_cast<size_t>(bytes));
  return array;
}

bool ReadMetadata(const Json& object, std::map<std::string, std::string>& metadata) {
  if (!object.is_object()) return false;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) return false;
    metadata[key] = value.get_ref<const std::string&>();
  }
  return true;
}

// The arrays in file order must follow one another without gap or overlap, up to the file's end.
absl::Status CheckTiling(const std::string& path, const std::vector<StoredArray>& arrays,
                         absl::Span<const std::byte> data) {
  const std::byte* end = data.data();
  for (const StoredArray& array : arrays) {
    if (array.bytes.data() != end) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", array.name,
                       array.bytes.data() < end ? " overlaps the one before it"
                                                : " leaves bytes before it that belong to none"));
    }
    end += array.bytes.size();
  }
  if (end != data.data() + data.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": the last ", data.data() + data.size() - end, " bytes belong to no tensor"));
  }
  return absl::OkStatus();
}

template <typename To, typename From>
void Convert(absl::Span<const std::byte> bytes, std::vector<To>& to) {
  for (size_t i = 0; i < to.size(); ++i) {
    From value;
    std::memcpy(&value, bytes.data() + i * sizeof(From), sizeof(From));
    to[i] = static_cast<To>(value);
  }
}

template <typename To>
std::vector<To> ToNumbers(absl::string_view dtype, absl::Span<const std::byte> bytes) {
  const int64_t element_bytes = ElementBytes(dtype);
  Check(element_bytes != 0, "unknown dtype %s", dtype);
  std::vector<To> numbers(bytes.size() / static_cast<size_t>(element_bytes));
  if (dtype == "F32") Convert<To, float>(bytes, numbers);
  if (dtype == "F64") Convert<To, double>(bytes, numbers);
  if (dtype == "I32") Convert<To, int32_t>(bytes, numbers);
  if (dtype == "I64") Convert<To, int64_t>(bytes, numbers);
  if (dtype == "BF16") {
    for (size_t i = 0; i < numbers.size(); ++i) {
      uint16_t upper;
      std::memcpy(&upper, bytes.data() + 2 * i, 2);
      const uint32_t bits = static_cast<uint32_t>(upper) << 16;
      float value;
      std::memcpy(&value, &bits, 4);
      numbers[i] = value;
    }
  }
  return numbers;
}

}  // namespace

int64_t StoredArray::element_bytes() const { return ElementBytes(dtype); }

std::vector<float> ToFloats(absl::string_view dtype, absl::Span<const std::byte> bytes) {
  return ToNumbers<float>(dtype, bytes);
}

std::vector<double> ToDoubles(absl::string_view dtype, absl::Span<const std::byte> bytes) {
  return ToNumbers<double>(dtype, bytes);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  absl::StatusOr<MappedFile> mapped = MappedFile::Open(path);
  if (!mapped.ok()) return mapped.status();
  const absl::Span<const std::byte> bytes = mapped->bytes();
  uint64_t length = 0;
  if (bytes.size() >= kLengthBytes) std::memcpy(&length, bytes.data(), kLengthBytes);
  if (bytes.size() < kLengthBytes || length > kLargestHeader ||
      length > bytes.size() - kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no safetensors file, or truncated: ", bytes.size(),
                     " bytes with a header of ", length, " bytes"));
  }
  const absl::string_view header(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                                 static_cast<size_t>(length));
  absl::StatusOr<Json> json = ParseJson(header, absl::StrCat(path, ": header"));
  if (!json.ok()) return json.status();

  const auto data = bytes.subspan(kLengthBytes + static_cast<size_t>(length));
  SafetensorsFile file(*std::move(mapped));
  for (const auto& [name, entry] : json->items()) {
    if (name == "__metadata__") {
      if (!ReadMetadata(entry, file.metadata_)) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": __metadata__ is no object of strings"));
      }
      continue;
    }
    absl::StatusOr<StoredArray> array =
        ReadEntry(absl::StrCat(path, ": tensor ", name), name, entry, data);
    if (!array.ok()) return array.status();
    file.arrays_.push_back(*std::move(array));
  }
  // Empty tensors first among those that begin at the same byte.
  std::sort(file.arrays_.begin(), file.arrays_.end(),
            [](const StoredArray& a, const StoredArray& b) {
              return std::make_pair(a.bytes.data(), a.bytes.size()) <
                     std::make_pair(b.bytes.data(), b.bytes.size());
            });
  if (absl::Status s = CheckTiling(path, file.arrays_, data); !s.ok()) return s;
  return file;
}

absl::StatusOr<SafetensorsSource> SafetensorsSource::Open(const std::string& path) {
  SafetensorsSource source;
  std::error_code ignored;
  std::string file_path = path;
  if (std::filesystem::is_directory(path, ignored)) {
    file_path = absl::StrCat(path, "/model.safetensors");
    const std::string index_path = file_path + ".index.json";
    if (!std::filesystem::exists(file_path, ignored)) {
      if (!std::filesystem::exists(index_path, ignored)) {
        return absl::NotFoundError(absl::StrCat(
            path, " holds neither model.safetensors nor model.safetensors.index.json"));
      }
      if (absl::Status s = source.OpenIndexed(path, index_path); !s.ok()) return s;
      return source;
    }
  }
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(file_path);
  if (!file.ok()) return file.status();
  source.metadata_ = file->metadata();
  source.files_.push_back(*std::move(file));
  for (const StoredArray& array : source.files_[0].arrays()) source.arrays_[array.name] = &array;
  return source;
}

absl::Status SafetensorsSource::OpenIndexed(const std::string& directory,
                                            const std::string& index_path) {
  absl::StatusOr<std::string> text = ReadFile(index_path);
  if (!text.ok()) return text.status();
  absl::StatusOr<Json> index = ParseJson(*text, index_path);
  if (!index.ok()) return index.status();
  const auto weight_map = index->find("weight_map");
  if (weight_map == index->end() || !weight_map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, ": no object weight_map"));
  }
  std::map<std::string, std::map<std::string, const StoredArray*>> opened;  // by file, by name
  for (const auto& [name, value] : weight_map->items()) {
    const std::string file_name = value.is_string() ? value.get_ref<const std::string&>() : "";
    if (file_name.empty() || file_name.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": weight_map.", name, " is not the name of a file beside it"));
    }
    const auto [file, is_new] = opened.try_emplace(file_name);
    if (is_new) {
      absl::StatusOr<SafetensorsFile> shard =
          SafetensorsFile::Open(absl::StrCat(directory, "/", file_name));
      if (!shard.ok()) return shard.status();
      files_.push_back(*std::move(shard));
      for (const StoredArray& array : files_.back().arrays()) file->second[array.name] = &array;
    }
    const auto array = file->second.find(name);
    if (array == file->second.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": tensor ", name, " is not in ", file_name));
    }
    arrays_[name] = array->second;
  }
  return absl::OkStatus();
}

const StoredArray* SafetensorsSource::Find(const std::string& name) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? nullptr : found->second;
}

}  // namespace twinstream
