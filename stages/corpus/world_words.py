"""The generated world's words: attributes with their values, and invented country names.

Attributes and values are common nouns in both languages; country names are put together from
syllables, each with one Chinese character, so that the Chinese name is the English one's sound.
"""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """One thing in both languages."""

    en: str
    zh: str


@dataclass(frozen=True)
class Attribute:
    """What can be said of a country, and the four values it takes."""

    key: str
    group: str
    name: Word
    values: tuple[Word, Word, Word, Word]


def _attribute(key: str, group: str, zh: str, english: str, chinese: str) -> Attribute:
    a, b, c, d = map(Word, english.split(), chinese.split())
    return Attribute(key, group, Word(key, zh), (a, b, c, d))


# No word occurs twice, in either language: a value tells which attribute it belongs to.
ATTRIBUTES: tuple[Attribute, ...] = (
    _attribute("crop", "nature", "作物", "wheat rice beans corn", "小麦 水稻 豆子 玉米"),
    _attribute("metal", "nature", "金属", "iron gold silver tin", "生铁 黄金 白银 锡矿"),
    _attribute("animal", "nature", "动物", "horse goat camel deer", "骏马 山羊 骆驼 麋鹿"),
    _attribute("colour", "culture", "颜色", "red blue green white", "红色 蓝色 绿色 纯白"),
    _attribute("sport", "culture", "运动", "chess rowing archery skating", "象棋 划船 射箭 滑冰"),
    _attribute("instrument", "culture", "乐器", "drum flute harp horn", "大鼓 长笛 竖琴 号角"),
    _attribute("climate", "nature", "气候", "dry wet mild cold", "干燥 湿润 温和 寒冷"),
    _attribute("tree", "nature", "树木", "oak pine birch cedar", "橡树 松柏 白桦 雪杉"),
)

SYLLABLES: tuple[tuple[str, str], ...] = (
    ("ba", "巴"), ("be", "贝"), ("bo", "博"), ("da", "达"), ("de", "德"), ("do", "多"),
    ("fa", "法"), ("fe", "菲"), ("ga", "加"), ("ge", "格"), ("ka", "卡"), ("ke", "克"),
    ("la", "拉"), ("le", "莱"), ("lo", "洛"), ("ma", "马"), ("mi", "米"), ("mo", "莫"),
    ("na", "纳"), ("ni", "尼"), ("no", "诺"), ("pa", "帕"), ("ro", "罗"), ("sa", "萨"),
    ("si", "西"), ("su", "苏"), ("ta", "塔"), ("ti", "蒂"), ("to", "托"), ("ve", "维"),
)  # fmt: skip
ENDINGS = ("r", "n", "l", "s", "th", "m")
MAX_COUNTRIES = 400
"""Of the 870 pairs of different syllables; few enough that drawing new ones stays quick."""


def country_names(count: int, rng: random.Random) -> list[Word]:
    """`count` different invented names, at most MAX_COUNTRIES; no two share their Chinese form."""
    pairs = [(first, last) for first in SYLLABLES for last in SYLLABLES if first != last]
    names = []
    for first, last in rng.sample(pairs, count):
        english = (first[0] + last[0] + rng.choice(ENDINGS)).capitalize()
        names.append(Word(english, first[1] + last[1]))
    return names
