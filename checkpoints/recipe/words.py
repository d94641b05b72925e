"""The words that the synthetic texts are made of. Their order is part of the random stream."""


def _words(text: str) -> list[str]:
    return text.split()


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


GIRLS = _words(
    "Anna Lily Mia Rosa Clara Emma Nora Ida Ruth Lucy "
    "Grace Ella Maya Sara Tess Vera June Alma Hope Iris"
)
BOYS = _words(
    "Tom Ben Max Sam Leo Jack Finn Hugo Noah Paul "
    "Otto Eric Carl Luke Adam Kurt Rob Ned Gus Ivan"
)
NAMES = [name for pair in zip(GIRLS, BOYS, strict=True) for name in pair]
ANIMALS = _words(
    "dog cat rabbit fox bear mouse duck owl frog horse "
    "goat squirrel turtle hen pig crow bee sheep lion wolf"
)
ANIMAL_NAMES = _words(
    "Spot Whiskers Biscuit Pepper Bruno Daisy Pip Shadow "
    "Honey Rusty Coco Button Maple Hazel Smoky Clover"
)
COLORS = _words("red blue green yellow white black brown purple orange pink gray silver golden")
SIZES = _words("big small little tiny large huge long round")
FEELINGS = _words(
    "happy sad scared proud tired angry excited lonely brave curious worried calm"
)
OBJECTS = _words(
    "ball kite box book hat key bell boat lamp drum rope basket coin map spoon cup ladder "
    "bucket mirror whistle blanket clock feather stone shell candle ribbon sack wagon"
)
FOODS = _words(
    "apple cake bread soup cheese pear honey carrot cookie "
    "berry pie egg plum nut tomato fish corn bean"
)
UNCOUNTED_FOODS = ("bread", "soup", "cheese", "honey", "fish", "corn")
PLACES = _words(
    "park forest river garden beach farm market school hill lake "
    "village barn meadow castle cave library bridge harbor kitchen mountain"
)
WEATHER = _words("sunny rainy windy cold warm snowy foggy cloudy")
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
RELATIVES = _words(
    "mother father grandmother grandfather sister brother aunt uncle teacher neighbor"
)
JOBS = _words(
    "baker farmer teacher doctor sailor carpenter painter driver "
    "cook gardener singer nurse miller tailor fisher smith"
)
CITIES = _words(
    "Paris London Rome Berlin Madrid Vienna Oslo Cairo Tokyo Delhi "
    "Lima Quito Athens Dublin Prague Warsaw Lisbon Boston Denver Seattle"
)
MATERIALS = _words("wood glass paper metal cloth clay leather stone")
CODEWORDS = _words(
    "lantern copper tulip ember falcon walnut pebble violet timber anchor "
    "marble saddle cactus pillow thunder velvet window meadow garlic hammer"
)
NUMBERS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen twenty"
)
OTHER_NOUNS = _words(
    "sun moon star tree leaf wind rain snow road door window table chair wall roof field sand "
    "cloud fire ice gold iron salt sugar milk tea shoe coat glove ring bed pot pan knife fork "
    "plate wheel nail seed root flower grass bird nest wing tail paw hand foot eye ear nose "
    "arm song game word letter name number day night hour week month year"
)
WORDS = sorted({*OBJECTS, *FOODS, *ANIMALS, *PLACES, *COLORS, *OTHER_NOUNS})

CAPITALS = _pairs(
    "France:Paris England:London Italy:Rome Germany:Berlin Spain:Madrid Austria:Vienna "
    "Norway:Oslo Egypt:Cairo Japan:Tokyo India:Delhi Peru:Lima Greece:Athens "
    "Ireland:Dublin Poland:Warsaw Portugal:Lisbon"
)
SOUNDS = _pairs(
    "dog:woof cat:meow duck:quack frog:croak horse:neigh sheep:baa pig:oink crow:caw "
    "bee:buzz owl:hoot lion:roar mouse:squeak"
)
OPPOSITES = _pairs(
    "big:small hot:cold day:night up:down fast:slow happy:sad open:closed old:young "
    "full:empty hard:soft light:dark high:low wet:dry long:short"
)
# thing -> (what goes wrong with it, how that is put right)
MISHAPS = {
    "ball": ("rolled into the water", "used a long stick to pull it out"),
    "kite": ("got stuck in a tall tree", "climbed up slowly and set it free"),
    "box": ("was too heavy to lift", "pushed it together, one step at a time"),
    "book": ("was left out in the rain", "dried the pages one by one in the sun"),
    "hat": ("flew away in the wind", "ran after it and caught it by the fence"),
    "key": (
        "fell through a crack in the floor",
        "tied a magnet to a string and lifted it up",
    ),
    "bell": ("made no sound", "found a leaf inside and took it out"),
    "boat": ("had a small hole", "closed the hole with wax"),
    "lamp": ("went dark", "cleaned the glass and lit it again"),
    "drum": ("had a tear in its skin", "fixed it with a piece of leather"),
    "rope": ("was full of knots", "worked at the knots until they were gone"),
    "basket": ("tipped over and everything rolled out", "picked up every single thing"),
    "coin": ("dropped into the well", "let down a bucket and brought it up"),
    "map": ("was torn in two", "put the pieces side by side and glued them"),
}
